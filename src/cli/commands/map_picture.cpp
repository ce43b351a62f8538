// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/map_picture.hpp"

#include "cli/arrays/output_file.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/heat_map.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace annulus::cli {

namespace {

DrawingFormat checked_format(const PictureOptions &options) {
    return format_of("--picture", options.path);
}

std::string text_of(double value) {
    return number_text(value, 4);
}

std::string area_text(const Tiles &tiles, bool has_columns) {
    const Point extent = tiles.extent();
    const std::string area = number_text(extent.x, 10) + " x " + number_text(extent.y, 10);
    return has_columns ? " on " + area : ", tiles of size " + number_text(tiles.side, 6) + " on " + area;
}

std::string place_text(const Point &corner, bool has_columns) {
    const std::string x = number_text(corner.x, 10), y = number_text(corner.y, 10);
    return has_columns ? "in column " + x + ", row " + y : "at " + x + ", " + y;
}

double sum(const std::vector<double> &values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
}

} // namespace

void PictureOptions::add_to(Command &command) {
    command
        .file("--picture", path,
              "Picture of the mean over the heads, of one batch entry, written as PNG or SVG, as its name ends")
        .group("Files");
    const std::string group = "Picture";
    command.number<std::int64_t>("--grid", places.width, 1, "The positions lie row by row on a grid with W columns")
        .value("W")
        .group(group);
    command
        .file("--coordinates", places.coordinates,
              "Where each position lies: x and y of the upper left corner of its tile; a .npy file [tiles, 2] of any "
              "float or integer dtype, else lines of x,y")
        .group(group);
    command
        .number("--tile-size", places.tile_size,
                "Side of a tile, in the unit of --coordinates (default: the median distance of a tile to its nearest "
                "neighbour)")
        .value("X")
        .group(group);
    command
        .number<std::int64_t>("--skip", places.skip, 0,
                              "Positions before the first one that is drawn, 1 for a class token (default: 0)")
        .value("K")
        .group(group);
    command
        .parsed(
            "--range", [this](const std::string &text) { range = parse_color_range(text); },
            "Numbers of the first and the last colour, or quantiles of what is drawn (default: 1%:99%)")
        .value("LOW:HIGH")
        .group(group);
}

MapPicture::MapPicture(const PictureOptions &options, std::int64_t positions)
    : options_(options), format_(checked_format(options)), tiles_(place_tiles(options.places, positions)),
      raster_(make_raster(tiles_, options.places)) {}

void MapPicture::write(const MapNumbers &numbers) const {
    const std::vector<double> values(numbers.values.begin() + options_.places.skip, numbers.values.end());
    const Bounds bounds = bounds_of(options_.range.value_or(ColorRange{}), values);
    const HeatMap map{raster_.columns,    raster_.spread(tiles_, values),
                      raster_.origin.x,   raster_.origin.y,
                      raster_.point_side, bounds.low,
                      bounds.high,        describe(numbers, values),
                      numbers.unit};
    write_file("--picture", options_.path, encoded(draw(map), format_));
}

// Returns the lines above the picture.
std::vector<std::string> MapPicture::describe(const MapNumbers &numbers, const std::vector<double> &values) const {
    const std::int64_t skip = options_.places.skip;
    const bool has_columns = options_.places.width.has_value();
    std::vector<std::string> lines;
    lines.push_back(numbers.name + " of " + counted(std::ssize(values), "position", "positions") +
                    area_text(tiles_, has_columns) + ", " + numbers.source);
    if (!numbers.pattern.empty())
        lines.push_back(numbers.pattern);
    std::vector<double> sorted = values;
    std::erase_if(sorted, [](double value) { return std::isnan(value); });
    std::ranges::sort(sorted);
    const auto largest = static_cast<std::size_t>(std::ranges::find(values, sorted.back()) - values.begin());
    lines.push_back("least " + text_of(sorted.front()) + ", median " + text_of(sorted[sorted.size() / 2]) + ", mean " +
                    text_of(sum(sorted) / static_cast<double>(sorted.size())) + ", most " + text_of(sorted.back()) +
                    " " + place_text(tiles_.corners[largest], has_columns));
    if (skip > 0)
        lines.push_back(
            std::string("not drawn: position 0") + (skip > 1 ? " to " + std::to_string(skip - 1) : "") +
            (numbers.is_mass
                 ? ", with " + text_of(sum({numbers.values.begin(), numbers.values.begin() + skip})) + " in all"
                 : ""));
    if (const std::int64_t missing = std::ssize(values) - std::ssize(sorted); missing > 0)
        lines.push_back("not drawn: " + counted(missing, "position", "positions") + " without a number");
    return lines;
}

} // namespace annulus::cli
