// SPDX-License-Identifier: Apache-2.0
// Tiles: a few hundred rows of the caller's tensors, brought together in the type of accumulation. Copying a tile costs
// a few hundredths of the products made with it, and serves every dtype, stride, dilation and order alike.
#pragma once

#include "core/dtype_number.hpp"
#include "core/plan.hpp"
#include "core/tensor.hpp"
#include "cpu/simd/simd.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace annulus {

// Query rows worked on at a time.
inline constexpr int query_tile = 16 * group_columns;

// Key rows worked on at a time: as many as the caches next to a core hold of K and V.
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
    std::int64_t stride_; // positions to a row
    std::byte *data_;     // null where the tensor has no rows
    std::int64_t first_;  // bytes to the first of these rows
};

// Reads the rows at `positions` into tile [count, d]. Returns whether all of it is finite.
template <class T> bool load_tile(const HeadRows &rows, const std::int64_t *positions, int count, int d, T *tile) {
    bool finite = true;
    for (int i = 0; i < count; ++i)
        finite &=
            vector_kernels<T>().load_row(rows.dtype(), rows[positions[i]], d, tile + static_cast<std::int64_t>(i) * d);
    return finite;
}

// Writes tile [count, d] as groups of `group_columns` columns, [group][d][group_columns]; columns beyond count are
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

// S[keys, group_columns] = factor * rows Q^T, of rows [keys, d] with a group of transposed queries. A factor of Q
// beforehand could overflow where the product does not.
template <class T> void score_tile(int keys, int d, const T *rows, const T *transposed, T factor, T *scores) {
    vector_kernels<T>().multiply({keys, group_columns, d, rows, d, 1, transposed, scores, false, factor});
}

// The product with `adds`, but where an element of A is 0 the row of B is left out: 0 times NaN or infinity must not
// reach a row that does not attend to it. For the rare tiles that are masked and hold such a value.
template <class T> void add_product_skipping_zeros(const TileProduct<T> &x) {
    for (int i = 0; i < x.m; ++i)
        for (int k = 0; k < x.k; ++k) {
            const T factor = x.a[i * x.a_row + k * x.a_column];
            if (factor != T{0})
                for (int e = 0; e < x.n; ++e)
                    x.c[i * x.n + e] += factor * x.b[k * x.n + e];
        }
}

// C[keys, d] += A B, of A [keys, group_columns] and B [columns, d].
template <class T> void add_to_keys(bool careful, int keys, int d, int columns, const T *a, const T *b, T *c) {
    const TileProduct<T> product{keys, d, columns, a, group_columns, 1, b, c, true};
    careful ? add_product_skipping_zeros(product) : vector_kernels<T>().multiply(product);
}

// C[columns, d] += A^T B, of A [keys, group_columns] and B [keys, d].
template <class T> void add_to_queries(bool careful, int columns, int d, int keys, const T *a, const T *b, T *c) {
    const TileProduct<T> product{columns, d, keys, a, 1, group_columns, b, c, true};
    careful ? add_product_skipping_zeros(product) : vector_kernels<T>().multiply(product);
}

// The smallest and the largest of some positions.
struct Span {
    std::int64_t low, high;
};
inline Span span_of(const std::int64_t *positions, int count) {
    const auto [low, high] = std::minmax_element(positions, positions + count);
    return {*low, *high};
}

// Global positions of the places from … from + count - 1 of a progression, as far as they lie in the window. Returns
// their number.
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

// How many keys of a tile come into question for a query at `last` or before: where positions ascend, those up to it.
inline int visible_keys(const Segment &segment, const std::int64_t *positions, int count, std::int64_t last) {
    return segment.curve.is_linear()
               ? static_cast<int>(std::upper_bound(positions, positions + count, last) - positions)
               : count;
}

} // namespace annulus
