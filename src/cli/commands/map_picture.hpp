// SPDX-License-Identifier: Apache-2.0
// The picture of `annulus map`.
#pragma once

#include "cli/commands/color_range.hpp"
#include "cli/commands/tile_places.hpp"
#include "cli/commands/tile_raster.hpp"
#include "cli/report/drawing.hpp"
#include "cli/report/options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// The options of the picture.
struct PictureOptions {
    std::string path; // empty: no picture
    PlaceOptions places;
    std::optional<ColorRange> range; // default: ColorRange{}

    void add_to(Command &command);
};

// What is drawn, and the words for it.
struct MapNumbers {
    std::vector<double> values; // one for each position, skipped positions included
    std::string name;           // Attention mass
    std::string unit;           // at the colour bar
    std::string source;         // from 53 queries, mean of 2 heads
    std::string pattern;        // empty: unknown
    bool is_mass;               // sums of values have a meaning
};

// The places of a picture, made before the numbers are computed.
class MapPicture {
  public:
    // Throws Failure with exit_bad_input if `positions` positions cannot be drawn so.
    MapPicture(const PictureOptions &options, std::int64_t positions);

    // Draws the numbers and writes the file. Throws Failure with exit_bad_input if none of them can be drawn.
    void write(const MapNumbers &numbers) const;

  private:
    std::vector<std::string> describe(const MapNumbers &numbers, const std::vector<double> &values) const;

    const PictureOptions &options_;
    DrawingFormat format_;
    Tiles tiles_;
    Raster raster_;
};

} // namespace annulus::cli
