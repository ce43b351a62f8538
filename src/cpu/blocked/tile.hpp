// SPDX-License-Identifier: Apache-2.0
// Tiles: copies of a few hundred rows of the caller's tensors in the type of accumulation. Copying a tile costs a few
// per cent of the products made with it. It handles every dtype, stride, dilation and order in the same way.
#pragma once

#include "core/dtype_number.hpp"
#include "core/plan.hpp"
#include "core/tensor.hpp"
#include "cpu/simd/simd.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace annulus {

// Number of query rows in a tile.
inline constexpr int query_tile = 16 * group_columns;

// Returns the number of key rows in a tile. K and V of a tile fit into the caches of a core.
inline int key_tile(std::int32_t head_dim) {
    return std::min(128, 16384 / head_dim);
}

// The rows of one batch entry and head of a [B, rows, heads, D] tensor, by global position.
class HeadRows {
  public:
    HeadRows(const annulus_tensor &tensor, std::int64_t b, std::int64_t head, std::int64_t start,
             std::int64_t stride = 1)
        : dtype_(tensor.dtype), row_bytes_(tensor.stride[1] * dtype_bytes(tensor.dtype)), start_(start),
          stride_(stride), data_(static_cast<std::byte *>(tensor.data)),
          first_((b * tensor.stride[0] + head * tensor.stride[2]) * dtype_bytes(tensor.dtype)) {}

    annulus_dtype dtype() const { return dtype_; }
    void *operator[](std::int64_t position) const {
        return data_ + (first_ + (position - start_) / stride_ * row_bytes_);
    }

  private:
    annulus_dtype dtype_;
    std::int64_t row_bytes_;
    std::int64_t start_;  // global position of the tensor's first row
    std::int64_t stride_; // positions between consecutive rows
    std::byte *data_;     // null if the tensor has no rows
    std::int64_t first_;  // offset in bytes of the head's first row
};

// Reads the rows at `positions` into tile [count, d]. Returns true if all elements are finite.
template <class T> bool load_tile(const HeadRows &rows, const std::int64_t *positions, int count, int d, T *tile) {
    bool is_finite = true;
    for (int i = 0; i < count; ++i)
        is_finite &=
            vector_kernels<T>().load_row(rows.dtype(), rows[positions[i]], d, tile + static_cast<std::int64_t>(i) * d);
    return is_finite;
}

// Writes tile [count, d] as groups of `group_columns` columns, [group][d][group_columns]. Columns beyond count are
// zero.
template <class T> void transpose_tile(const T *tile, int count, int d, T *transposed) {
    for (int group = 0; group * group_columns < count; ++group) {
        const int columns = std::min(group_columns, count - group * group_columns);
        const T *source = tile + static_cast<std::int64_t>(group) * group_columns * d;
        T *target = transposed + static_cast<std::int64_t>(group) * group_columns * d;
        for (int e = 0; e < d; ++e) {
            for (int c = 0; c < columns; ++c)
                target[e * group_columns + c] = source[c * d + e];
            std::fill(target + e * group_columns + columns, target + (e + 1) * group_columns, T{0});
        }
    }
}

// Computes S[keys, group_columns] = factor * rows Q^T, for rows [keys, d] and a group of transposed queries. If the
// factor were applied to Q first, Q could overflow where the product does not.
template <class T> void score_tile(int keys, int d, const T *rows, const T *transposed, T factor, T *scores) {
    vector_kernels<T>().multiply({keys, group_columns, d, rows, d, 1, transposed, scores, false, factor});
}

// Computes the product with `adds`, but skips the row of B wherever the element of A is 0. Otherwise 0 times NaN or
// infinity would reach a row that does not attend to it. Used for the rare tiles that are masked and hold such a value.
template <class T> void add_product_skipping_zeros(const TileProduct<T> &x) {
    for (int i = 0; i < x.m; ++i)
        for (int k = 0; k < x.k; ++k) {
            const T factor = x.a[i * x.a_row + k * x.a_column];
            if (factor != T{0})
                for (int e = 0; e < x.n; ++e)
                    x.c[i * x.n + e] += factor * x.b[k * x.n + e];
        }
}

// Computes C[keys, d] += A B, for A [keys, group_columns] and B [columns, d].
template <class T> void add_to_keys(bool skips_zeros, int keys, int d, int columns, const T *a, const T *b, T *c) {
    const TileProduct<T> product{keys, d, columns, a, group_columns, 1, b, c, true};
    skips_zeros ? add_product_skipping_zeros(product) : vector_kernels<T>().multiply(product);
}

// Computes C[columns, d] += A^T B, for A [keys, group_columns] and B [keys, d].
template <class T> void add_to_queries(bool skips_zeros, int columns, int d, int keys, const T *a, const T *b, T *c) {
    const TileProduct<T> product{columns, d, keys, a, 1, group_columns, b, c, true};
    skips_zeros ? add_product_skipping_zeros(product) : vector_kernels<T>().multiply(product);
}

// The smallest and the largest of a set of positions.
struct Span {
    std::int64_t low, high;
};
inline Span span_of(const std::int64_t *positions, int count) {
    const auto [low, high] = std::minmax_element(positions, positions + count);
    return {*low, *high};
}

// Writes the global positions of the places from … from + count - 1 of a progression, as far as they lie in the window.
// Returns their number.
inline int fill_positions(const Segment &segment, const Progression &places, std::int64_t from, std::int64_t count,
                          const Window &window, std::int64_t *positions) {
    int filled = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t position = segment.position(places[from + i]);
        if (position >= window.start && position < window.end())
            positions[filled++] = position;
    }
    return filled;
}

// Keys first … first + count - 1 of a tile.
struct KeyRange {
    int first, count;
};

// Returns the keys of a tile that some query of a span may see. If positions do not ascend, these are all keys.
inline KeyRange visible_keys(const Segment &segment, const std::int64_t *positions, int count, const KeyBounds &bounds,
                             const Span &queries) {
    if (!segment.curve.is_linear())
        return {0, count};
    const Window seen = bounds.keys(queries.low, queries.high);
    const auto index_from = [&](std::int64_t position) {
        return static_cast<int>(std::lower_bound(positions, positions + count, position) - positions);
    };
    const int first = index_from(seen.start);
    return {first, index_from(seen.end()) - first};
}

// Calls use(keys) for the keys of a range that some query of a span does not see. If positions do not ascend, these are
// all keys of the range.
template <class Use>
void for_each_masked(const Segment &segment, const std::int64_t *positions, const KeyRange &range,
                     const KeyBounds &bounds, const Span &queries, Use use) {
    if (!segment.curve.is_linear()) {
        use(range);
        return;
    }
    const std::int64_t *const begin = positions + range.first, *const end = begin + range.count;
    const std::int64_t *const seen_by_all = std::lower_bound(begin, end, queries.high - bounds.before);
    const std::int64_t *const after_all = std::lower_bound(seen_by_all, end, queries.low + bounds.after + 1);
    if (begin != seen_by_all)
        use(KeyRange{range.first, static_cast<int>(seen_by_all - begin)});
    if (after_all != end)
        use(KeyRange{static_cast<int>(after_all - positions), static_cast<int>(end - after_all)});
}

inline bool meets(const KeyBounds &bounds, const Span &queries, const Span &keys) {
    return bounds.meets(queries.low, queries.high, keys.low, keys.high);
}
inline bool covers(const KeyBounds &bounds, const Span &queries, const Span &keys) {
    return bounds.covers(queries.low, queries.high, keys.low, keys.high);
}

} // namespace annulus
