// SPDX-License-Identifier: Apache-2.0
// Arithmetic progressions and residues, in closed form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// Returns a / b rounded up, for a >= 0 and b > 0, without overflow.
constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
    return a / b + (a % b != 0);
}

// Returns a / b rounded down, for b > 0.
constexpr std::int64_t divide_down(std::int64_t a, std::int64_t b) {
    return a / b - (a % b < 0);
}

// Returns the residue of a in [0, b), for b > 0.
constexpr std::int64_t remainder(std::int64_t a, std::int64_t b) {
    const std::int64_t rest = a % b;
    return rest < 0 ? rest + b : rest;
}

// The places first, first + stride, … of a segment, `count` of them.
struct Progression {
    std::int64_t first = 0;
    std::int64_t stride = 1;
    std::int64_t count = 0;
    constexpr std::int64_t operator[](std::int64_t j) const { return first + j * stride; }
    bool operator==(const Progression &) const = default;
};

constexpr bool contains(const Progression &p, std::int64_t x) {
    return x >= p.first && (x - p.first) % p.stride == 0 && (x - p.first) / p.stride < p.count;
}

// Returns the index of the first element that is at least x, or the count if there is none.
constexpr std::int64_t first_from(const Progression &p, std::int64_t x) {
    return x <= p.first ? 0 : std::min(p.count, divide_up(x - p.first, p.stride));
}

// Returns the elements from … to - 1 of a progression, as far as it has them.
constexpr Progression slice(const Progression &p, std::int64_t from, std::int64_t to) {
    to = std::min(to, p.count);
    // Past the end of the progression an element may exceed 64 bits.
    return from < to ? Progression{p[from], p.stride, to - from} : Progression{p.first, p.stride, 0};
}

// Returns the part of a progression that lies in [begin, end).
constexpr Progression clip(const Progression &p, std::int64_t begin, std::int64_t end) {
    return slice(p, first_from(p, begin), first_from(p, end));
}

// Returns the elements that two progressions have in common, which are a progression again.
Progression intersect(const Progression &a, const Progression &b);

// Returns the sets that lie inside no other set, longest first.
std::vector<Progression> without_contained(std::vector<Progression> sets);

// Returns the number of elements of the union, by inclusion-exclusion. Returns nothing if that takes more than `terms`
// intersections. Subtracts the number of intersections that it took from `terms`.
std::optional<std::int64_t> count_union(std::vector<Progression> sets, std::int64_t &terms);

} // namespace annulus
