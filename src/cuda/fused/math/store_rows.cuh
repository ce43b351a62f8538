// SPDX-License-Identifier: Apache-2.0
// From a row block's results, in registers as products leave them, to rows of a tensor. A warp writes each of its
// strips without other warps; `Thread` is the FragmentThread of the strip.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/math/shared_rows.cuh"

#include <algorithm>
#include <cstdint>

namespace annulus {

// Sets `has_nonfinite` to 1 if an element is NaN or infinite.
template <int count> __device__ __forceinline__ void note_nonfinite(const float (&x)[count], int *has_nonfinite) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < count; ++i)
        zero += x[i] * 0.f;
    if (zero != 0.f)
        *has_nonfinite = 1;
}

// Calls use(i, pair) for each pair i of columns that the thread has of a row of partial results. With `reads`, `pair`
// is what the row holds, else 0. Several pairs are read at the same time.
template <int pairs, class Use>
__device__ __forceinline__ void for_each_pair(float *partial, int columns, bool reads, const Use &use) {
    constexpr int at_once = pairs <= 8 ? pairs : 4; // there are no registers for more
#pragma unroll
    for (int first = 0; first < pairs; first += at_once) {
        if (8 * first >= columns) // so that the compiler does not read all pairs at once
            break;
        float2 pair[at_once];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const int column = 8 * (first + i) + FragmentThread<>().column();
            pair[i] = first + i < pairs && reads && column < columns
                          ? *reinterpret_cast<const float2 *>(partial + column)
                          : float2{0, 0};
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i)
            if (first + i < pairs)
                use(first + i, pair[i]);
    }
}

// Multiplies row r of the thread's two rows by `factor`, and adds `partial_factor` times `partial` to it.
template <int count>
__device__ __forceinline__ void add_partial_row(float (&x)[count], int r, float factor, float partial_factor,
                                                float *partial, int columns) {
    for_each_pair<count / 4>(partial, columns, true, [&](int i, const float2 &two) {
        float *const own = x + 4 * i + 2 * r;
        own[0] = fmaf(own[0], factor, two.x * partial_factor);
        own[1] = fmaf(own[1], factor, two.y * partial_factor);
    });
}

// Adds partial results to the thread's two rows. A row whose `partial` is null stays as it is. Up to eight pairs of
// columns of both rows are read at the same time. The reads are volatile, since the compiler would otherwise read all
// pairs at once, for which there are no registers. Forward adds one row after the other (add_partial_row()), since its
// kernels for float32 would spill registers.
template <int count>
__device__ __forceinline__ void add_partial_rows(float (&x)[count], const float *const (&partial)[2], int columns) {
    constexpr int pairs = count / 4, at_once = pairs < 8 ? pairs : 8;
#pragma unroll
    for (int first = 0; first < pairs; first += at_once) {
        float2 pair[at_once][2];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const int column = 8 * (first + i) + FragmentThread<>().column();
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                pair[i][r] = {0, 0};
                if (first + i < pairs && partial[r] && column < columns)
                    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];"
                                 : "=f"(pair[i][r].x), "=f"(pair[i][r].y)
                                 : "l"(partial[r] + column));
            }
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                if (first + i < pairs && partial[r]) {
                    x[4 * (first + i) + 2 * r] += pair[i][r].x;
                    x[4 * (first + i) + 2 * r + 1] += pair[i][r].y;
                }
    }
}

// Writes row `partial`. With `adds`, it becomes `partial_factor` times what it holds, else 0. If `has_any`, `factor`
// times row r of the thread's two rows is added.
template <int count>
__device__ __forceinline__ void store_partial_row(const float (&x)[count], int r, bool has_any, float factor, bool adds,
                                                  float partial_factor, float *partial, int columns) {
    for_each_pair<count / 4>(partial, columns, adds, [&](int i, const float2 &two) {
        const int column = 8 * i + FragmentThread<>().column();
        const float *const row = x + 4 * i + 2 * r;
        const float2 own = has_any ? float2{row[0] * factor, row[1] * factor} : float2{0, 0};
        if (column < columns)
            *reinterpret_cast<float2 *>(partial + column) = {fmaf(two.x, partial_factor, own.x),
                                                             fmaf(two.y, partial_factor, own.y)};
    });
}

// Writes pairs of elements of the dtype to shared memory.
template <class Thread, int count>
__device__ __forceinline__ void stage_pairs(std::uint32_t staging, const std::uint32_t (&pairs)[count]) {
    const Thread own;
    const int lane = own.lane();
    const std::uint32_t first = staging + swizzled_offset(row_block_rows, own.strip() * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < count / 4; ++i) // parts 2 i and 2 i + 1
        store_matrices((first ^ i % 4 * 32) + i / 4 * row_block_rows * swizzled_row_bytes, pairs[4 * i],
                       pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
}

// Writes x to shared memory in the dtype: `first` times the thread's first row, `second` times its second row, 8
// further.
template <class Element, class Thread, int count>
__device__ __forceinline__ void stage_rows(std::uint32_t staging, const float (&x)[count], float first, float second) {
    if constexpr (sizeof(Element) == sizeof(float)) {
        const Thread own;
#pragma unroll
        for (int i = 0; i < count / 2; ++i) {
            const float factor = i % 2 ? second : first;
            const int column = i / 2 * 8 + own.column();
            store_8_bytes(staging + swizzled_offset<sizeof(float)>(row_block_rows, own.row(i % 2), column / 4) +
                              column % 4 * sizeof(float),
                          {x[2 * i] * factor, x[2 * i + 1] * factor});
        }
    } else {
        std::uint32_t pairs[count / 2];
#pragma unroll
        for (int i = 0; i < count / 2; ++i) {
            const float factor = i % 2 ? second : first;
            pairs[i] = pack_two<Element>(x[2 * i] * factor, x[2 * i + 1] * factor);
        }
        stage_pairs<Thread>(staging, pairs);
    }
    __syncwarp();
}

// Copies the staged rows of a row block to the tensor: the first `columns` columns of row i go to row_at(i). The whole
// warp calls row_at().
template <class Element, int max_columns, class Thread, class Rows, class RowAt>
__device__ __forceinline__ void store_rows(std::uint32_t staging, const Rows &row_block, int columns,
                                           const RowAt &row_at) {
    const Thread own;
    const int lane = own.lane(), strip = own.strip();
    constexpr int part_columns = 16 / sizeof(Element), parts = max_columns / part_columns;
#pragma unroll
    for (int i = 0; i < parts / 2; ++i) {
        const int row = strip * 16 + (lane + i * warp_threads) / parts, part = (lane + i * warp_threads) % parts;
        const uint4 sixteen_bytes =
            load_16_bytes(staging + swizzled_offset<sizeof(Element)>(row_block_rows, row, part));
        Element *const target = row_at(row);
        if (has_row(row_block, row) && part * part_columns < columns)
            *reinterpret_cast<uint4 *>(target + part * part_columns) = sixteen_bytes;
    }
}

// Rows at equal distances, in elements. Row i is (*this)(i).
template <class Element> struct EvenRows {
    Element *first;
    std::int64_t distance;

    __device__ __forceinline__ Element *operator()(int i) const { return first + i * distance; }
};
template <class Element> EvenRows(Element *, std::int64_t) -> EvenRows<Element>;

// Does the same for rows at equal distances. A lane copies one part of every few rows, or none.
template <class Element, int max_columns, class Thread, class Rows>
__device__ __forceinline__ void store_rows(std::uint32_t staging, const Rows &row_block, int columns,
                                           const EvenRows<Element> &even_rows) {
    const Thread own;
    using Lanes = RowLanes<max_columns, sizeof(Element)>;
    constexpr int lanes = std::min(Lanes::lanes, warp_threads), at_once = warp_threads / lanes;
    const int first_row = own.strip() * 16 + own.lane() / lanes;
#pragma unroll
    for (int first_part = 0; first_part < Lanes::parts; first_part += lanes) {
        const int part = first_part + own.lane() % lanes, column = part * Lanes::columns_of_part;
        const std::uint32_t source =
            staging + swizzled_offset<sizeof(Element)>(row_block_rows, first_row, std::min(part, Lanes::parts - 1));
        Element *target = even_rows(first_row) + column;
        const int present = column < columns ? row_block.rows : 0;
#pragma unroll
        for (int i = 0; i < 16; i += at_once, target += at_once * even_rows.distance) {
            const uint4 sixteen_bytes = load_16_bytes(swizzled_rows_further<sizeof(Element)>(source, i));
            if (first_row + i >= row_block.skipped && first_row + i < present)
                *reinterpret_cast<uint4 *>(target) = sixteen_bytes;
        }
    }
}

} // namespace annulus
