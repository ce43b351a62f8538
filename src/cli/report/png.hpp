// SPDX-License-Identifier: Apache-2.0
// Pictures of points, as PNG.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

// Red, green, blue and how little shows through, from 0 to 255.
using Color = std::array<std::uint8_t, 4>;

// The bytes of a file; `points` are the rows of the picture, from the top, one behind the other. Throws Failure where
// this build has no libpng.
std::string png_of(const std::vector<Color> &points, std::int64_t width);

} // namespace annulus::cli
