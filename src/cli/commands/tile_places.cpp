// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/tile_places.hpp"

#include "cli/arrays/npy.hpp"
#include "cli/commands/nearest_neighbor.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace annulus::cli {

namespace {

constexpr double max_coordinate = 0x1p53; // double holds every whole number up to it

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.back() == '\r' || text.back() == ' '))
        text.remove_suffix(1);
    while (!text.empty() && text.front() == ' ')
        text.remove_prefix(1);
    return text;
}

// Reads "x,y" on each line. The first line may be a heading.
std::vector<Point> read_csv(const std::string &path) {
    const InputFile file("--coordinates", path);
    const std::vector<std::string_view> lines =
        split({reinterpret_cast<const char *>(file.data()), file.bytes()}, '\n');
    std::vector<Point> points;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const std::string_view line = trimmed(lines[i]);
        if (line.empty())
            continue;
        const std::vector<std::string_view> words = split(line, ',');
        const std::optional<double> x = parse_real(trimmed(words[0]));
        const std::optional<double> y = words.size() == 2 ? parse_real(trimmed(words[1])) : std::nullopt;
        if (x && y)
            points.push_back({*x, *y});
        else if (i > 0 || x)
            throw bad_input(file.subject() + ": line " + std::to_string(i + 1) +
                            " must be two numbers with a comma between them, x,y");
    }
    file.check_unchanged();
    return points;
}

std::vector<Point> read_npy(const std::string &path) {
    const NpyNumbers array = read_npy_numbers("--coordinates", path);
    if (array.shape.size() != 2 || array.shape[1] != 2)
        throw bad_input("--coordinates '" + path + "': the array must be [tiles, 2], x and y of each");
    std::vector<Point> points;
    for (std::size_t i = 0; i < array.numbers.size(); i += 2)
        points.push_back({array.numbers[i], array.numbers[i + 1]});
    return points;
}

std::vector<Point> read_coordinates(const std::string &path, std::int64_t tiles) {
    std::vector<Point> points = is_npy_path(path) ? read_npy(path) : read_csv(path);
    const std::string subject = "--coordinates '" + path + "': ";
    if (std::ssize(points) != tiles)
        throw bad_input(subject + "there are " + counted(std::ssize(points), "tile", "tiles") + " and " +
                        counted(tiles, "position", "positions") +
                        "; they must be equally many (--skip 1 passes over a class "
                        "token)");
    for (std::size_t i = 0; i < points.size(); ++i)
        for (const double value : {points[i].x, points[i].y})
            if (!(std::abs(value) <= max_coordinate))
                throw bad_input(subject + "tile " + std::to_string(i) + " lies at " + number_text(points[i].x, 10) +
                                ", " + number_text(points[i].y, 10) +
                                "; both numbers must be finite and from -2^53 to 2^53");
    return points;
}

// Returns the given tile size or the median distance to the nearest neighbour. A given size far below the distance
// would leave nearly all of the picture empty, so it must be at least a tenth of it.
double side_of(const PlaceOptions &options, const std::vector<Point> &corners) {
    const std::optional<double> distance = median_nearest_distance(corners);
    if (!options.tile_size) {
        if (!distance)
            throw bad_input("--coordinates '" + options.coordinates +
                            "': all tiles lie in one place, which does not say how large they are; --tile-size must");
        return *distance;
    }
    const double side = *options.tile_size;
    const std::string subject = "--tile-size " + number_text(side, 10) + ": ";
    if (!(side > 0 && side <= max_coordinate))
        throw bad_input(subject + "must be above 0 and at most 2^53");
    constexpr double least_share = 0.1;
    if (distance && side < *distance * least_share)
        throw bad_input(subject + "tiles are " + number_text(*distance, 6) +
                        " from their nearest neighbour (median), so nearly all of the picture would be empty; the size "
                        "must be at least " +
                        number_text(*distance * least_share, 6));
    return side;
}

Tiles tiles_of_rows(std::int64_t width, std::int64_t tiles) {
    if (width > tiles)
        throw bad_input("--grid " + std::to_string(width) + ": must be from 1 to the " + std::to_string(tiles) +
                        " positions that are drawn");
    Tiles grid{{}, 1};
    for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t column = i % width, row = i / width;
        grid.corners.push_back({static_cast<double>(column), static_cast<double>(row)});
    }
    return grid;
}

} // namespace

Point Tiles::origin() const {
    return {std::ranges::min(corners, {}, &Point::x).x, std::ranges::min(corners, {}, &Point::y).y};
}

Point Tiles::extent() const {
    const Point least = origin();
    return {std::ranges::max(corners, {}, &Point::x).x - least.x + side,
            std::ranges::max(corners, {}, &Point::y).y - least.y + side};
}

Tiles place_tiles(const PlaceOptions &options, std::int64_t tokens) {
    if (options.skip < 0 || options.skip >= tokens)
        throw bad_input("--skip " + std::to_string(options.skip) + ": must be from 0 to one fewer than the " +
                        std::to_string(tokens) + " positions");
    if (options.width.has_value() == !options.coordinates.empty())
        throw bad_input("--picture needs either --grid or --coordinates, which say where positions lie");
    const std::int64_t tiles = tokens - options.skip;
    if (options.width) {
        if (options.tile_size)
            throw bad_input("--tile-size is for --coordinates; the places of --grid have the size 1");
        return tiles_of_rows(*options.width, tiles);
    }
    std::vector<Point> corners = read_coordinates(options.coordinates, tiles);
    const double side = side_of(options, corners);
    return {std::move(corners), side};
}

} // namespace annulus::cli
