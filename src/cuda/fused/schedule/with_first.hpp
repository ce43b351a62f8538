// SPDX-License-Identifier: Apache-2.0
// Turns a number that is known at run time into the constant that a kernel was compiled for.
#pragma once

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

namespace annulus {

// Calls use(std::integral_constant) with the first constant of an array for which suits(value) is true. Does nothing if
// there is none.
template <const auto &candidates, class Suits, class Use> void with_first(const Suits &suits, const Use &use) {
    bool done = false;
    const auto try_one = [&](auto candidate) {
        if (done || !suits(candidate.value))
            return;
        done = true;
        use(candidate);
    };
    [&]<std::size_t... i>(std::index_sequence<i...>) {
        (try_one(std::integral_constant<std::remove_cvref_t<decltype(candidates[i])>, candidates[i]>()), ...);
    }
    (std::make_index_sequence<std::size(candidates)>());
}

// True if `value` is one of these constants.
template <int... values> constexpr bool is_among(int value) {
    return ((value == values) || ...);
}

} // namespace annulus
