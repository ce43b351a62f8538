// SPDX-License-Identifier: Apache-2.0
// The work for attention mass on a CPU before and after the engine.
#include "cpu/results/results.hpp"

#include "core/dtype_number.hpp"
#include "core/progression.hpp"
#include "cpu/parallel.hpp"

#include <algorithm>

namespace annulus {

namespace {

// Calls use(index) for `rows` rows. A thread takes some thousands at a time.
template <class Use> void for_each_row(int threads, std::int64_t rows, const Use &use) {
    constexpr std::int64_t rows_per_item = 4096;
    parallel_for(threads, divide_up(rows, rows_per_item), [&](std::int64_t item, int) {
        for (std::int64_t i = item * rows_per_item; i < std::min(rows, (item + 1) * rows_per_item); ++i)
            use(i);
    });
}

} // namespace

void mark_heads_on_cpu(const MassWork &work, int threads) {
    const auto mark = [&](auto bits) {
        for_each_row(threads, work.query_rows(), [&](std::int64_t i) {
            std::fill_n(static_cast<decltype(bits) *>(work.d_out) + i * work.head_dim, work.head_dim, 0);
            work.mark<decltype(bits)>(i);
        });
    };
    switch (dtype_bytes(work.dtype)) {
    case 8:
        return mark(std::uint64_t{});
    case 4:
        return mark(std::uint32_t{});
    default:
        return mark(std::uint16_t{});
    }
}

void take_mass_on_cpu(const MassWork &work, int threads) {
    const auto take = [&](auto sum) {
        for_each_row(threads, work.masses(), [&](std::int64_t i) { work.take<decltype(sum)>(i); });
    };
    if (work.dtype == ANNULUS_FLOAT64)
        take(double{});
    else
        take(float{});
}

} // namespace annulus
