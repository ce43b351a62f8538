// SPDX-License-Identifier: Apache-2.0
#include "core/progression.hpp"

#include <numeric>
#include <utility>

namespace annulus {

namespace {

__extension__ using Wide = __int128; // holds the product of two strides

bool is_contained(const Progression &set, const Progression &in) {
    return contains(in, set.first) &&
           (set.count == 1 || (set.stride % in.stride == 0 && contains(in, set[set.count - 1])));
}

// Returns the x in [0, m) with a x = 1 mod m, for coprime a and m.
std::int64_t inverse(std::int64_t a, std::int64_t m) {
    std::int64_t x = 1, next_x = 0, rest = a % m, next = m; // |x| stays below m
    while (next != 0) {
        const std::int64_t quotient = rest / next;
        rest = std::exchange(next, rest - quotient * next);
        x = std::exchange(next_x, x - quotient * next_x);
    }
    return remainder(x, m);
}

// With a period up to this, sums of a period and an element fit into 64 bits.
constexpr std::int64_t max_period = std::int64_t{1} << 61;

// Returns the elements that are in both a and b (Chinese remainder theorem). a[first_common_step] is a term of b
// extended in both directions. Every `period` after it there is another common element.
template <class Number>
Progression common_elements(const Progression &a, const Progression &b, Number period, std::int64_t first_common_step) {
    const std::int64_t begin = std::max(a.first, b.first), last = std::min(a[a.count - 1], b[b.count - 1]);
    const Number any = a.first - begin + Number{a.stride} * first_common_step, rest = any % period;
    const Number first = begin + (rest < 0 ? rest + period : rest);
    if (first > last)
        return {};
    const auto count = static_cast<std::int64_t>((last - first) / period) + 1;
    return {static_cast<std::int64_t>(first), count == 1 ? 1 : static_cast<std::int64_t>(period), count};
}

// Adds `sign` · |union| to `count` by inclusion-exclusion. Returns false if that needs more than `terms` intersections.
bool add_union(std::vector<Progression> sets, std::int64_t sign, std::int64_t &count, std::int64_t &terms) {
    for (sets = without_contained(std::move(sets)); !sets.empty();) {
        const Progression set = sets.back();
        sets.pop_back();
        terms -= static_cast<std::int64_t>(sets.size());
        if (terms < 0)
            return false;
        std::vector<Progression> shared;
        for (const Progression &other : sets)
            if (const Progression both = intersect(set, other); both.count > 0)
                shared.push_back(both);
        count += sign * set.count;
        if (!shared.empty() && !add_union(std::move(shared), -sign, count, terms))
            return false;
    }
    return true;
}

} // namespace

Progression intersect(const Progression &a, const Progression &b) {
    const Progression none{};
    if (a.count == 0 || b.count == 0)
        return none;
    if (a.count == 1)
        return contains(b, a.first) ? a : none;
    if (b.count == 1)
        return contains(a, b.first) ? b : none;
    if (a.stride < b.stride)
        return intersect(b, a);
    const std::int64_t apart = b.first - a.first;
    if (apart > 0 ? b.first > a[a.count - 1] : a.first > b[b.count - 1])
        return none;
    if (a.stride % b.stride == 0) // the residues agree for all elements of a or for none; only the ends are cut off
        return apart % b.stride == 0 ? clip(a, b.first, b[b.count - 1] + 1) : none;
    const std::int64_t divisor = std::gcd(a.stride, b.stride);
    if (apart % divisor != 0)
        return none;
    const std::int64_t steps = b.stride / divisor;
    const std::int64_t first_common_step = static_cast<std::int64_t>(
        Wide{remainder(apart / divisor, steps)} * inverse(a.stride / divisor % steps, steps) % steps);
    // In 64 bits if they suffice: that is several times as fast.
    std::int64_t period = 0;
    return __builtin_mul_overflow(a.stride, steps, &period) || period > max_period
               ? common_elements<Wide>(a, b, Wide{a.stride} * steps, first_common_step)
               : common_elements<std::int64_t>(a, b, period, first_common_step);
}

std::vector<Progression> without_contained(std::vector<Progression> sets) {
    std::sort(sets.begin(), sets.end(), [](const Progression &a, const Progression &b) { return a.count > b.count; });
    std::vector<Progression> maximal;
    for (const Progression &set : sets)
        if (set.count > 0 && std::none_of(maximal.begin(), maximal.end(),
                                          [&](const Progression &larger) { return is_contained(set, larger); }))
            maximal.push_back(set);
    return maximal;
}

std::optional<std::int64_t> count_union(std::vector<Progression> sets, std::int64_t &terms) {
    std::int64_t count = 0;
    if (!add_union(std::move(sets), 1, count, terms))
        return std::nullopt;
    return count;
}

} // namespace annulus
