// SPDX-License-Identifier: Apache-2.0
// Merges results on a CPU. Threads take blocks of positions with all their heads, which are neighbours in memory.
#include "cpu/results/results.hpp"

#include "core/dtype_number.hpp"
#include "core/progression.hpp"
#include "cpu/parallel.hpp"
#include "cpu/simd/simd.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace annulus {

namespace {

constexpr std::int64_t block_rows = 16;
constexpr int max_columns = 256;
constexpr int group_parts = 8; // number of parts that are added at a time

// What the parts' LSEs of a row say.
template <class T> struct RowLse {
    T largest = -std::numeric_limits<T>::infinity();
    bool is_sound = true; // none is NaN or +infinity
};

template <class T> RowLse<T> read_lses(const MergeWork &work, std::int64_t b, std::int64_t h, std::int64_t n) {
    RowLse<T> row;
    for (int i = 0; i < work.count; ++i) {
        const T lse = *work.lses[i].at<T>(b, h, n);
        row.largest = std::max(row.largest, lse);
        row.is_sound = row.is_sound && lse < std::numeric_limits<T>::infinity();
    }
    return row;
}

// Sets `sum` to the sum of the parts' rows times their weights exp(LSE_i - largest). Returns the sum of the weights.
template <class T>
T add_parts(const MergeWork &work, std::int64_t b, std::int64_t h, std::int64_t n, T largest, T *sum) {
    const VectorKernels<T> &kernels = vector_kernels<T>();
    const std::int64_t element = dtype_bytes(work.dtype);
    alignas(64) std::array<T, group_parts * max_columns> rows;
    std::array<T, group_parts> weights;
    TileProduct<T> product{1, work.head_dim, 0, weights.data(), group_parts, 1, rows.data(), sum};
    product.adds = true; // a product without `adds` would make NaN of an infinity
    std::fill_n(sum, work.head_dim, T{0});
    T weight_sum = 0;
    for (int i = 0; i < work.count; ++i) {
        const T lse = *work.lses[i].at<T>(b, h, n);
        if (lse > -std::numeric_limits<T>::infinity()) {
            const T weight = std::exp(lse - largest);
            weight_sum += weight;
            const MergeRows &part = work.outs[i];
            const std::int64_t first = b * part.batch + h * part.head + n * part.row;
            T *const values = rows.data() + product.k * work.head_dim;
            kernels.load_row(work.dtype, static_cast<const std::byte *>(part.data) + first * element, work.head_dim,
                             values);
            if (weight == 0)
                std::transform(values, values + work.head_dim, values, [](T value) { return weighted<T>(0, value); });
            weights[static_cast<std::size_t>(product.k++)] = weight == 0 ? 1 : weight;
        }
        if (product.k == group_parts || (i + 1 == work.count && product.k > 0)) {
            kernels.multiply(product);
            product.k = 0;
        }
    }
    return weight_sum;
}

template <class T> void merge_row(const MergeWork &work, std::int64_t b, std::int64_t h, std::int64_t n) {
    const RowLse<T> row = read_lses<T>(work, b, h, n);
    alignas(64) std::array<T, max_columns> sum;
    T factor = 1, lse = row.largest; // -infinity if all LSEs are
    if (!row.is_sound) {
        lse = std::numeric_limits<T>::quiet_NaN();
        sum.fill(lse);
    } else if (row.largest == -std::numeric_limits<T>::infinity()) {
        sum.fill(0);
    } else {
        const T weights = add_parts(work, b, h, n, row.largest, sum.data());
        factor = 1 / weights;
        lse += std::log(weights);
    }
    const std::int64_t first = b * work.out.batch + h * work.out.head + n * work.out.row;
    vector_kernels<T>().store_row(work.dtype, sum.data(), factor, work.head_dim,
                                  static_cast<std::byte *>(work.out.data) + first * dtype_bytes(work.dtype));
    if (work.lse.data)
        *work.lse.at<T>(b, h, n) = lse;
}

template <class T> void merge_rows(const MergeWork &work, int threads) {
    const std::int64_t blocks = divide_up(work.rows, block_rows), items = work.batches * blocks;
    parallel_for(static_cast<int>(std::min<std::int64_t>(threads, items)), items, [&](std::int64_t item, int) {
        const std::int64_t b = item / blocks, first = item % blocks * block_rows;
        for (std::int64_t n = first; n < std::min(first + block_rows, work.rows); ++n)
            for (std::int64_t h = 0; h < work.heads; ++h)
                merge_row<T>(work, b, h, n);
    });
}

} // namespace

void merge_on_cpu(const MergeWork &work, int threads) {
    if (work.dtype == ANNULUS_FLOAT64)
        merge_rows<double>(work, threads);
    else
        merge_rows<float>(work, threads);
}

} // namespace annulus
