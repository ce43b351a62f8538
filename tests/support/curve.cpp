// SPDX-License-Identifier: Apache-2.0
#include "support/curve.hpp"

namespace annulus::test {
namespace {

struct Cell {
    std::int64_t x, y;
};

// Returns the walk over a width x height rectangle from (0, 0) to the other end of the width. It joins the walks of
// parts, whose coordinates grow along the walk. Halves of odd sides round towards the grid's origin: down in a part
// walked `forward`, otherwise up.
std::vector<Cell> cells(std::int64_t width, std::int64_t height, bool forward) {
    std::vector<Cell> list;
    if (width == 1 || height == 1) {
        for (std::int64_t i = 0; i < width * height; ++i)
            list.push_back(height == 1 ? Cell{i, 0} : Cell{0, i});
        return list;
    }
    const auto half = [&](std::int64_t side) { return forward ? side / 2 : side - side / 2; };
    const auto even = [&](std::int64_t side) {
        const std::int64_t h = half(side);
        return h % 2 == 1 && side > 2 ? h + 1 : h;
    };
    if (2 * width > 3 * height) {
        const std::int64_t first = even(width);
        for (const Cell c : cells(first, height, forward))
            list.push_back(c);
        for (const Cell c : cells(width - first, height, forward))
            list.push_back({first + c.x, c.y});
    } else {
        const std::int64_t left = half(width), up = even(height);
        for (const Cell c : cells(up, left, forward))
            list.push_back({c.y, c.x});
        for (const Cell c : cells(width, height - up, forward))
            list.push_back({c.x, up + c.y});
        for (const Cell c : cells(up, width - left, !forward))
            list.push_back({width - 1 - c.y, up - 1 - c.x});
    }
    return list;
}

} // namespace

std::vector<std::int64_t> hilbert_positions(std::int64_t rows, std::int64_t columns) {
    std::vector<std::int64_t> positions;
    if (columns >= rows) {
        for (const Cell c : cells(columns, rows, true))
            positions.push_back(c.y * columns + c.x);
    } else {
        for (const Cell c : cells(rows, columns, true))
            positions.push_back(c.x * columns + c.y);
    }
    return positions;
}

std::int64_t hilbert_columns(std::int64_t length) {
    std::int64_t columns = 1;
    while (columns * columns < length || length % columns != 0)
        ++columns;
    return columns;
}

} // namespace annulus::test
