// SPDX-License-Identifier: Apache-2.0
#include "cpu/reference/definition.hpp"

#include <algorithm>
#include <cstdlib>

namespace annulus {

namespace {

// ---- The Hilbert order: the curve as the recursion that defines it, visited cell by cell.

struct Vector {
    std::int64_t row, column;
    Vector operator+(Vector v) const { return {row + v.row, column + v.column}; }
    Vector operator-(Vector v) const { return {row - v.row, column - v.column}; }
    Vector operator-() const { return {-row, -column}; }
};

// Sides of rectangles are vectors along one axis. Their length is the number of cells of the side.
std::int64_t cells(Vector side) {
    return std::abs(side.row + side.column);
}

Vector step(Vector side) {
    return {side.row / cells(side), side.column / cells(side)};
}

// Returns half of a side, rounded towards smaller rows and columns.
Vector half(Vector side) {
    return {side.row >> 1, side.column >> 1};
}

// Returns half of a side, plus one cell if that is odd and the side is longer than two cells.
Vector even_half(Vector side) {
    const Vector h = half(side);
    return cells(h) % 2 == 1 && cells(side) > 2 ? h + step(side) : h;
}

// Visits the rectangle with the given sides, from `corner` to the other end of `major`.
template <class Visit> void walk(Vector corner, Vector major, Vector minor, Visit &visit) {
    if (cells(major) == 1 || cells(minor) == 1) {
        const Vector line = cells(minor) == 1 ? major : minor;
        for (std::int64_t i = 0; i < cells(line); ++i, corner = corner + step(line))
            visit(corner);
    } else if (2 * cells(major) > 3 * cells(minor)) {
        const Vector first = even_half(major);
        walk(corner, first, minor, visit);
        walk(corner + first, major - first, minor, visit);
    } else {
        const Vector up = even_half(minor), left = half(major), right = major - left;
        walk(corner, up, left, visit);
        walk(corner + up, major, minor - up, visit);
        walk(corner + major - step(major) + up - step(up), -up, -right, visit);
    }
}

// Calls place(position, p) for every position of a segment, where p is its index along the curve.
template <class Place> void follow_curve(std::int64_t length, std::int64_t grid_width, const Place &place) {
    std::int64_t columns = grid_width;
    if (columns == 0 || length % columns != 0) {
        columns = 1;
        while (columns * columns < length || length % columns != 0)
            ++columns;
    }
    const std::int64_t rows = length / columns;
    std::int64_t p = 0;
    const auto visit = [&](Vector cell) { place(cell.row * columns + cell.column, p++); };
    const Vector down{rows, 0}, across{0, columns};
    if (columns >= rows)
        walk({0, 0}, across, down, visit);
    else
        walk({0, 0}, down, across, visit);
}

} // namespace

// ---- Which keys a query attends to.

void Definition::fill() const {
    for (std::size_t i = 0; i < pattern_.branches.size(); ++i)
        fill(pattern_.branches[i], segments(i), residues(i));
}

int Definition::multiplicity(std::int64_t n, std::int64_t m, std::int32_t h) const {
    if (pattern_.causal && m > n)
        return 0;
    int count = 0;
    for (std::size_t i = 0; i < pattern_.branches.size(); ++i) {
        const Branch &branch = pattern_.branches[i];
        const std::int64_t *segment = segments(i), *residue = residues(i);
        if (!serves(branch, h) || segment[n] != segment[m])
            continue;
        if (branch.kind == ANNULUS_BRANCH_GLOBAL) {
            count += is_global(branch, m) || (branch.has_global_queries && is_global(branch, n));
            continue;
        }
        if (branch.kind == ANNULUS_BRANCH_WINDOW && !is_near(branch, n, m))
            continue;
        switch (branch.query_rule) {
        case ANNULUS_QUERY_DILATED:
            count += residue[n] == phase(branch, h) && residue[m] == phase(branch, h);
            break;
        case ANNULUS_QUERY_RESIDUE:
            count += residue[n] == residue[m];
            break;
        case ANNULUS_QUERY_EVERY:
            count += residue[m] == phase(branch, h);
            break;
        }
    }
    return pattern_.key_rule == ANNULUS_KEY_ONCE ? std::min(count, 1) : count;
}

std::int64_t Definition::zero_keys(std::int64_t n, std::int32_t h) const {
    if (pattern_.padding_rule != ANNULUS_PADDING_ZERO_KEYS || pattern_.causal)
        return 0;
    std::int64_t count = 0;
    for (std::size_t i = 0; i < pattern_.branches.size(); ++i) {
        const Branch &branch = pattern_.branches[i];
        const std::int64_t *segment = segments(i), *residue = residues(i);
        if (!serves(branch, h) || branch.kind != ANNULUS_BRANCH_SEGMENTS ||
            (branch.query_rule == ANNULUS_QUERY_DILATED && residue[n] != phase(branch, h)))
            continue;
        const std::int64_t wanted = branch.query_rule == ANNULUS_QUERY_RESIDUE ? residue[n] : phase(branch, h);
        const std::int64_t w = std::min(segment_length(branch), problem_.sequence_length), r = branch.dilation;
        count += w / r + (w % r != 0);
        for (std::int64_t m = 0; m < problem_.sequence_length; ++m)
            count -= segment[m] == segment[n] && residue[m] == wanted;
    }
    return count;
}

bool Definition::is_global(const Branch &branch, std::int64_t position) {
    return position >= branch.first_global && position < branch.first_global + branch.global_count;
}

bool Definition::is_near(const Branch &branch, std::int64_t n, std::int64_t m) {
    const std::int64_t r = branch.dilation, distance = std::abs(m - n), steps = distance / r,
                       limit = m < n ? branch.left : branch.right;
    return distance % r == 0 && (limit < 0 || steps <= limit);
}

std::int64_t Definition::segment_length(const Branch &branch) const {
    return branch.segment_length == 0 ? problem_.sequence_length : branch.segment_length;
}

std::int32_t Definition::head_count(const Branch &branch) const {
    if (branch.head_count != 0)
        return branch.head_count;
    return (pattern_.head_shard.total ? pattern_.head_shard.total : problem_.heads) - branch.first_head;
}

std::int64_t Definition::counted(const Branch &branch, std::int32_t h) const {
    return std::int64_t{h} + pattern_.head_shard.first - branch.first_head;
}

bool Definition::serves(const Branch &branch, std::int32_t h) const {
    return counted(branch, h) >= 0 && counted(branch, h) < head_count(branch);
}

std::int64_t Definition::phase(const Branch &branch, std::int32_t h) const {
    const std::int64_t c = head_count(branch), r = branch.dilation;
    switch (branch.phase_rule) {
    case ANNULUS_PHASE_BLOCK:
        return counted(branch, h) / (c / r + (c % r != 0));
    case ANNULUS_PHASE_INTERLEAVE:
        return counted(branch, h) % r;
    case ANNULUS_PHASE_FIXED:
        break;
    }
    return branch.fixed_residue % r;
}

std::int64_t *Definition::segments(std::size_t i) const {
    return segments_ + static_cast<std::int64_t>(i) * problem_.sequence_length;
}

std::int64_t *Definition::residues(std::size_t i) const {
    return residues_ + static_cast<std::int64_t>(i) * problem_.sequence_length;
}

void Definition::fill(const Branch &branch, std::int64_t *segment, std::int64_t *residue) const {
    const std::int64_t w = segment_length(branch), r = branch.dilation, N = problem_.sequence_length;
    for (std::int64_t n = 0; n < N; ++n) {
        segment[n] = n / w;
        residue[n] = n % w % r;
    }
    if (branch.order == ANNULUS_ORDER_LINEAR)
        return;
    for (std::int64_t start = 0, length = 0; start < N; start += length) {
        length = std::min(w, N - start);
        follow_curve(length, branch.grid_width,
                     [&](std::int64_t position, std::int64_t p) { residue[start + position] = p % r; });
    }
}

} // namespace annulus
