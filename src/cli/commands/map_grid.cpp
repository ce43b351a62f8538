// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/map_grid.hpp"

#include "cli/arrays/npy.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>

namespace annulus::cli {

namespace {

constexpr std::int64_t max_side = 8192; // the most columns, or rows, of a picture

struct Point {
    std::int64_t x, y;
};

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
        const std::optional<std::int64_t> x = parse_integer(trimmed(words[0]));
        const std::optional<std::int64_t> y = words.size() == 2 ? parse_integer(trimmed(words[1])) : std::nullopt;
        if (x && y)
            points.push_back({*x, *y});
        else if (i > 0 || x)
            throw bad_input(file.subject() + ": line " + std::to_string(i + 1) +
                            " must be two whole numbers with a comma between them, x,y");
    }
    file.check_unchanged();
    return points;
}

std::vector<Point> read_npy(const std::string &path) {
    const NpyIntegers integers = read_npy_integers("--coordinates", path);
    if (integers.shape.size() != 2 || integers.shape[1] != 2)
        throw bad_input("--coordinates '" + path + "': the array must be [tiles, 2], x and y of each");
    std::vector<Point> points;
    for (std::size_t i = 0; i < integers.numbers.size(); i += 2)
        points.push_back({integers.numbers[i], integers.numbers[i + 1]});
    return points;
}

// Replaces the coordinates of one axis by indices on the coarsest grid that contains all of them. Returns the number of
// indices.
std::int64_t find_places(std::vector<std::int64_t> &values, const std::string &path) {
    const std::int64_t least = std::ranges::min(values), greatest = std::ranges::max(values);
    std::int64_t range = 0, step = 0;
    if (__builtin_sub_overflow(greatest, least, &range))
        throw bad_input("--coordinates '" + path + "': the coordinates lie further apart than 64 bits can say");
    for (std::int64_t &value : values)
        step = std::gcd(step, value -= least);
    step = std::max<std::int64_t>(step, 1);
    for (std::int64_t &value : values)
        value /= step;
    return range / step + 1;
}

Grid grid_of_coordinates(const std::string &path, std::int64_t tiles) {
    const std::vector<Point> points = is_npy_path(path) ? read_npy(path) : read_csv(path);
    if (static_cast<std::int64_t>(points.size()) != tiles)
        throw bad_input("--coordinates '" + path + "': there are " +
                        counted(static_cast<std::int64_t>(points.size()), "tile", "tiles") + " and " +
                        counted(tiles, "position", "positions") +
                        "; they must be equally many (--skip 1 passes over a class "
                        "token)");
    std::vector<std::int64_t> x, y;
    for (const Point &point : points) {
        x.push_back(point.x);
        y.push_back(point.y);
    }
    Grid grid{find_places(x, path), find_places(y, path), {}};
    if (std::max(grid.columns, grid.rows) > max_side)
        throw bad_input("--coordinates '" + path + "': the tiles lie on a grid of " + std::to_string(grid.columns) +
                        " x " + std::to_string(grid.rows) + " places, and at most " + std::to_string(max_side) + " x " +
                        std::to_string(max_side) + " can be drawn; they must be multiples of a tile's size apart");
    for (std::size_t i = 0; i < x.size(); ++i)
        grid.cells.push_back(y[i] * grid.columns + x[i]);
    std::vector<std::int64_t> sorted = grid.cells;
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
        throw bad_input("--coordinates '" + path + "': two tiles lie in the same place");
    return grid;
}

Grid grid_of_rows(std::int64_t width, std::int64_t tiles) {
    if (width > tiles)
        throw bad_input("--grid " + std::to_string(width) + ": must be from 1 to the " + std::to_string(tiles) +
                        " positions that are drawn");
    Grid grid{width, (tiles + width - 1) / width, std::vector<std::int64_t>(static_cast<std::size_t>(tiles))};
    if (std::max(grid.columns, grid.rows) > max_side)
        throw bad_input("--grid " + std::to_string(width) + ": " + std::to_string(tiles) +
                        " positions make a grid of " + std::to_string(grid.columns) + " x " +
                        std::to_string(grid.rows) + " places, and at most " + std::to_string(max_side) + " x " +
                        std::to_string(max_side) + " can be drawn");
    std::iota(grid.cells.begin(), grid.cells.end(), 0);
    return grid;
}

} // namespace

std::vector<double> Grid::spread(const std::vector<double> &position_values, std::int64_t skip) const {
    std::vector<double> places(static_cast<std::size_t>(columns * rows), std::numeric_limits<double>::quiet_NaN());
    for (std::size_t i = 0; i < cells.size(); ++i)
        places[static_cast<std::size_t>(cells[i])] = position_values[static_cast<std::size_t>(skip) + i];
    return places;
}

Grid make_grid(const GridOptions &options, std::int64_t tokens) {
    if (options.skip < 0 || options.skip >= tokens)
        throw bad_input("--skip " + std::to_string(options.skip) + ": must be from 0 to one fewer than the " +
                        std::to_string(tokens) + " positions");
    if (options.width.has_value() == !options.coordinates.empty())
        throw bad_input("--picture needs either --grid or --coordinates, which say where positions lie");
    const std::int64_t tiles = tokens - options.skip;
    return options.width ? grid_of_rows(*options.width, tiles) : grid_of_coordinates(options.coordinates, tiles);
}

} // namespace annulus::cli
