// SPDX-License-Identifier: Apache-2.0
// Replaces png.cpp in a build without cairo.
#include "cli/report/failure.hpp"
#include "cli/report/png.hpp"

namespace annulus::cli {

const bool has_png = false;

std::string png_of(const Points &) {
    throw Failure(exit_failed, "there is no cairo");
}

std::string png_of(const Drawing &) {
    throw Failure(exit_failed, "there is no cairo");
}

} // namespace annulus::cli
