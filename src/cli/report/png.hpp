// SPDX-License-Identifier: Apache-2.0
// PNG, by cairo.
#pragma once

#include "cli/report/drawing.hpp"

#include <string>

namespace annulus::cli {

// Whether this build has cairo. Without it the functions below throw.
extern const bool has_png;

// The bytes of files: of the points, one pixel each, and of a whole drawing, dark on white.
std::string png_of(const Points &points);
std::string png_of(const Drawing &drawing);

} // namespace annulus::cli
