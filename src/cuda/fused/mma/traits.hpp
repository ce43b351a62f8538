// SPDX-License-Identifier: Apache-2.0
// The constants of the kernels on mma.sync: for each head dimension the shapes in order of preference. A GPU gets the
// first shape that fits into its shared memory. doc/notes/mma.md tells what else was tried.
#pragma once

#include "cuda/fused/schedule/kernel_shape.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <algorithm>
#include <bit>

namespace annulus::mma {

// Shared memory of a multiprocessor that a CTA can have, for compute capabilities 7.5; 8.6, 8.9, 12; 8.0, 8.7; 9.0, 10.
enum class SharedCapacity { kib_64, kib_99, kib_163, kib_227 };
constexpr int capacity_bytes(SharedCapacity capacity) {
    constexpr int kib[] = {64, 99, 163, 227};
    return kib[static_cast<int>(capacity)] * 1024;
}

// Returns whether products are in float16 only. Compute capability 7.5 has none in bfloat16, and none in TF32, of which
// products in float32 consist.
constexpr bool has_only_float16(SharedCapacity capacity) {
    return capacity == SharedCapacity::kib_64;
}

// The head dimensions of the kernels. meson.build compiles the head dimensions that are asked for. Any other head
// dimension uses the kernel of the next larger one. In float32 there are kernels for multiples of 32.
inline constexpr int head_dims[] = {32, 48, 64, 96, 128, 192, 256};
constexpr bool has_kernels(int head_dim, int element_bytes) {
    return element_bytes == 2 || head_dim % 32 == 0;
}

// A warp computes `strips` strips of 16 rows. The rows of a range come in blocks, `stages` of them at a time. A thread
// has few enough registers for `ctas` CTAs on a multiprocessor.
struct Shape {
    int warps, strips, range_block_rows, stages, ctas;
    constexpr int row_blocks() const { return warps * strips / 4; }
};

constexpr int row_bytes(int head_dim, int element_bytes) {
    return (head_dim * element_bytes + 127) / 128 * 128;
}
// Returns the bytes beside rows: three tiles, their search, and LSE and delta of rows.
constexpr int bytes_beside_rows(const Shape &shape) {
    return 2560 + shape.row_blocks() * 1280 + shape.stages * shape.range_block_rows * 8;
}
// Returns the bytes of forward: row blocks of Q, and stages of K and V.
constexpr int forward_bytes(const Shape &shape, int head_dim, int element_bytes) {
    return (shape.row_blocks() * 64 + 2 * shape.stages * shape.range_block_rows) * row_bytes(head_dim, element_bytes) +
           bytes_beside_rows(shape);
}
// Returns the bytes of backward: row blocks and stages of Q or K, and of V or dO.
constexpr int backward_bytes(const Shape &shape, int head_dim, int element_bytes) {
    return shape.row_blocks() * 64 * row_bytes(head_dim, element_bytes) + forward_bytes(shape, head_dim, element_bytes);
}

// Returns the first shape of which a multiprocessor has room for `ctas` CTAs, or one without warps if none fits. Each
// CTA takes 1 KiB beside its own bytes.
template <int count>
constexpr Shape first_fitting(const Shape (&shapes)[count], int (*bytes)(const Shape &, int, int), int head_dim,
                              int element_bytes, SharedCapacity capacity) {
    for (const Shape &shape : shapes)
        if (shape.ctas * (bytes(shape, head_dim, element_bytes) + 1024) <= capacity_bytes(capacity) + 1024)
            return shape;
    return {};
}

// The shapes of both passes.
inline constexpr Shape float32_shapes[] = {{4, 1, 64, 2, 2}, {4, 1, 32, 2, 2}, {4, 1, 32, 1, 2},
                                           {8, 1, 32, 1, 1}, {4, 1, 32, 1, 1}, {4, 1, 16, 1, 1}};

constexpr Shape forward_shape(int head_dim, int element_bytes, SharedCapacity capacity) {
    const auto first = [&](const auto &shapes) {
        return first_fitting(shapes, forward_bytes, head_dim, element_bytes, capacity);
    };
    constexpr Shape up_to_64[] = {{4, 2, 128, 2, 2}, {4, 2, 64, 2, 2}, {4, 2, 64, 1, 2}},
                    up_to_128[] = {{4, 2, 64, 2, 2}, {4, 2, 48, 1, 2}, {8, 1, 64, 1, 1}},
                    fallback_shapes[] = {
                        {8, 1, 48, 1, 1}, {4, 1, 64, 1, 2}, {4, 1, 32, 1, 2}, {4, 1, 32, 1, 1}, {4, 1, 16, 1, 1}};
    if (element_bytes == 4)
        return first(float32_shapes);
    if (capacity == SharedCapacity::kib_64)
        return first(fallback_shapes);
    if (head_dim <= 64)
        return first(up_to_64);
    return head_dim <= 128 ? first(up_to_128) : first(fallback_shapes);
}

// Returns the shape for row blocks of queries or, if `rows_are_keys`, of keys. A second strip saves loads from shared
// memory, as far as registers allow. Only on data centers' GPUs do products wait for these loads.
constexpr Shape backward_shape(int head_dim, int element_bytes, bool rows_are_keys, SharedCapacity capacity) {
    const auto first = [&](const auto &shapes) {
        return first_fitting(shapes, backward_bytes, head_dim, element_bytes, capacity);
    };
    constexpr Shape one_strip[] = {{8, 1, 64, 2, 1},
                                   {4, 1, 48, 2, 1},
                                   {4, 1, 48, 1, 1},
                                   {4, 1, 32, 1, 1},
                                   {4, 1, 16, 1, 1}},
                    turing_shapes[] = {{4, 1, 32, 2, 1}, {4, 1, 32, 1, 1}, {4, 1, 16, 1, 1}};
    constexpr Shape fallback_shapes[] = {{8, 1, 64, 1, 1}, {8, 1, 16, 1, 1}};
    if (element_bytes == 4) // with more columns `gemm` is faster
        return head_dim <= most_columns_of_both ? first(float32_shapes) : Shape{};
    if (capacity == SharedCapacity::kib_64)
        return first(turing_shapes);
    if (capacity == SharedCapacity::kib_99)
        return first(one_strip);
    if (head_dim <= 64)
        return capacity == SharedCapacity::kib_227 && !rows_are_keys ? Shape{4, 2, 64, 2, 2} : Shape{4, 2, 32, 2, 2};
    if (head_dim <= 128)
        return {8, 1, 64, 2, 1};
    return first(fallback_shapes);
}

// Returns whether there are kernels that store dS instead of computing it twice. Below 49 columns, two products take
// less time than writing and reading their result. With 64 KiB, two stages of the kernel that multiplies dS do not fit.
constexpr bool has_storing_kernels(int head_dim, int element_bytes, SharedCapacity capacity) {
    return element_bytes == 2 && head_dim > 48 && head_dim <= most_columns_of_both &&
           capacity != SharedCapacity::kib_64;
}

// Returns the shape of a backward kernel. If it stores dS, blocks of queries divide an image: 32 rows instead of 48.
constexpr Shape backward_shape_of(Gradients what, int head_dim, int element_bytes, SharedCapacity capacity) {
    Shape shape = backward_shape(head_dim, element_bytes, what != Gradients::d_q, capacity);
    if (what == Gradients::d_k_and_d_v_storing_d_s)
        shape.range_block_rows = static_cast<int>(std::bit_floor(static_cast<unsigned>(shape.range_block_rows)));
    return shape;
}

// Returns whether all shapes fit, but for two known cases of 256 columns: backward on compute capability 7.5, and
// forward in float32 where there are 99 KiB.
constexpr bool all_fit() {
    for (const SharedCapacity capacity :
         {SharedCapacity::kib_64, SharedCapacity::kib_99, SharedCapacity::kib_163, SharedCapacity::kib_227})
        for (const int head_dim : head_dims)
            for (const int element_bytes : {2, 4}) {
                if (!has_kernels(head_dim, element_bytes) || (element_bytes == 4 && has_only_float16(capacity)))
                    continue;
                const auto is_right = [&](const Shape &shape, int bytes, bool lacks) {
                    return bytes <= capacity_bytes(capacity) && (shape.warps == 0) == lacks;
                };
                const Shape forward = forward_shape(head_dim, element_bytes, capacity);
                if (!is_right(forward, forward_bytes(forward, head_dim, element_bytes),
                              element_bytes == 4 && head_dim == 256 && capacity == SharedCapacity::kib_99))
                    return false;
                for (const bool rows_are_keys : {false, true}) {
                    const Shape shape = backward_shape(head_dim, element_bytes, rows_are_keys, capacity);
                    if (!is_right(shape, backward_bytes(shape, head_dim, element_bytes),
                                  element_bytes == 4 ? head_dim > most_columns_of_both
                                                     : head_dim == 256 && capacity == SharedCapacity::kib_64))
                        return false;
                }
            }
    return true;
}
static_assert(all_fit());

// What the traits of forward and backward have in common.
template <class Element_, int head_dim_, int warps, int strips_, int range_block_rows_, int stages_, int ctas_>
struct CommonTraits {
    using Element = Element_;
    static constexpr int head_dim = head_dim_, strips = strips_, range_block_rows = range_block_rows_, stages = stages_,
                         ctas = ctas_;
    static constexpr int threads = warps * 32, row_blocks = warps * strips / 4;
    static constexpr int row_block_bytes = 64 * row_bytes(head_dim, sizeof(Element)),
                         stage_bytes = range_block_rows * row_bytes(head_dim, sizeof(Element));
};

template <class Element, int head_dim, Shape shape>
using ShapeTraits =
    CommonTraits<Element, head_dim, shape.warps, shape.strips, shape.range_block_rows, shape.stages, shape.ctas>;

template <class Element, int head_dim, SharedCapacity capacity>
struct ForwardTraits : ShapeTraits<Element, head_dim, forward_shape(head_dim, sizeof(Element), capacity)> {
    static constexpr int max_shared_bytes =
        forward_bytes(forward_shape(head_dim, sizeof(Element), capacity), head_dim, sizeof(Element));
    static constexpr bool rows_are_keys = false;
};

template <class Element, int head_dim, SharedCapacity capacity, Gradients what>
struct BackwardTraits : ShapeTraits<Element, head_dim, backward_shape_of(what, head_dim, sizeof(Element), capacity)> {
    static constexpr int max_shared_bytes =
        backward_bytes(backward_shape_of(what, head_dim, sizeof(Element), capacity), head_dim, sizeof(Element));
    static constexpr bool rows_are_keys = what != Gradients::d_q;
    static constexpr bool has_d_q_or_k = what != Gradients::d_v; // then dP is needed, too
    static constexpr bool has_d_v = what != Gradients::d_q && what != Gradients::d_k;
    static constexpr bool stores_d_s = what == Gradients::d_k_and_d_v_storing_d_s;
};

// The traits of the kernel that multiplies stored dS.
template <class Element, int head_dim, SharedCapacity capacity>
struct DqFromDsTraits
    : CommonTraits<Element, head_dim, 8, 2, row_block_rows, capacity == SharedCapacity::kib_227 ? 3 : 2, 1> {
    static constexpr int max_shared_bytes = capacity_bytes(capacity);
};

} // namespace annulus::mma
