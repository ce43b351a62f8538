// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/tile_raster.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace annulus::cli {

namespace {

constexpr double max_side = 8192;  // the most columns, or rows, of a picture
constexpr double good_side = 1600; // columns or rows of a picture of tiles off a grid, if tiles then have enough points
constexpr double max_points = 32;  // along a side of a tile
constexpr double tolerance = 1e-3; // share of a point that rounding of coordinates may take

bool is_on_grid(const Tiles &tiles) {
    const Point origin = tiles.origin();
    return std::ranges::all_of(tiles.corners, [&](const Point &corner) {
        const double column = (corner.x - origin.x) / tiles.side, row = (corner.y - origin.y) / tiles.side;
        return std::abs(column - std::round(column)) < tolerance && std::abs(row - std::round(row)) < tolerance;
    });
}

Failure too_large(const Tiles &tiles, const PlaceOptions &options, double points_of_tile) {
    const Point extent = tiles.extent();
    const auto needed = [&](double length) {
        return number_text(std::ceil(length / tiles.side * points_of_tile - tolerance), 17);
    };
    const std::string size = needed(extent.x) + " x " + needed(extent.y);
    const std::string most = number_text(max_side, 17) + " x " + number_text(max_side, 17) + " can be drawn";
    if (options.width)
        return bad_input("--grid " + std::to_string(*options.width) + ": " + std::to_string(tiles.corners.size()) +
                         " positions make a grid of " + size + " places, and at most " + most);
    return bad_input("--coordinates '" + options.coordinates + "': tiles of size " + number_text(tiles.side, 6) +
                     " in an area of " + number_text(extent.x, 10) + " x " + number_text(extent.y, 10) +
                     " need a picture of " + size + " points, and at most " + most +
                     "; tiles that are far from all others, or a small --tile-size, make it large");
}

// The points that a tile covers along one axis, from `begin` to before `end`, from its first coordinate in points.
struct Span {
    Span(double first, double length, std::int64_t count)
        : from(first), to(first + length), begin(static_cast<std::int64_t>(std::floor(first))),
          end(std::min(static_cast<std::int64_t>(std::ceil(to)), count)) {}

    // Returns the share of a point that the tile covers.
    double share(std::int64_t point) const {
        const auto left = static_cast<double>(point);
        const double covered = std::min(to, left + 1) - std::max(from, left);
        return covered > tolerance ? covered : 0;
    }

    double from, to;
    std::int64_t begin, end;
};

} // namespace

std::vector<double> Raster::spread(const Tiles &tiles, const std::vector<double> &values) const {
    const auto count = static_cast<std::size_t>(columns * rows);
    std::vector<double> sums(count), weights(count);
    const double length = tiles.side / point_side;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i]))
            continue;
        const Span across((tiles.corners[i].x - origin.x) / point_side, length, columns);
        const Span down((tiles.corners[i].y - origin.y) / point_side, length, rows);
        for (std::int64_t row = down.begin; row < down.end; ++row)
            for (std::int64_t column = across.begin; column < across.end; ++column)
                if (const double weight = down.share(row) * across.share(column); weight > 0) {
                    const auto point = static_cast<std::size_t>(row * columns + column);
                    sums[point] += weight * values[i];
                    weights[point] += weight;
                }
    }
    for (std::size_t point = 0; point < count; ++point)
        sums[point] =
            weights[point] < 0.5 - tolerance ? std::numeric_limits<double>::quiet_NaN() : sums[point] / weights[point];
    return sums;
}

Raster make_raster(const Tiles &tiles, const PlaceOptions &options) {
    const Point extent = tiles.extent();
    const double longest = std::max(extent.x, extent.y) / tiles.side; // in tiles
    const bool on_grid = is_on_grid(tiles);
    const double least = on_grid ? 1 : 2;
    if (longest * least > max_side + tolerance)
        throw too_large(tiles, options, least);
    const double points_of_tile = on_grid ? 1
                                          : std::min(std::clamp(std::ceil(good_side / longest), least, max_points),
                                                     std::floor(max_side / longest));
    // A last point that the tiles cover less than half of is left out.
    const auto points = [&](double length) {
        return static_cast<std::int64_t>(std::round(length / tiles.side * points_of_tile));
    };
    return {tiles.origin(), tiles.side / points_of_tile, points(extent.x), points(extent.y)};
}

} // namespace annulus::cli
