// SPDX-License-Identifier: Apache-2.0
// Writes PNG, by cairo.
#pragma once

#include "cli/report/drawing.hpp"

#include <string>

namespace annulus::cli {

// True if this build has cairo. Otherwise the functions below throw.
extern const bool has_png;

// Return the bytes of a PNG file: of the points, one pixel each, or of a whole drawing, dark on white.
std::string png_of(const Points &points);
std::string png_of(const Drawing &drawing);

} // namespace annulus::cli
