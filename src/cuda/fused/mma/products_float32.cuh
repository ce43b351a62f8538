// SPDX-License-Identifier: Apache-2.0
// The products of products.cuh for 32-bit elements, on tensor cores. An exact product is one of float32: each number is
// the sum of two TF32 numbers, a high and a low half. The three largest of the four products of halves are added up. A
// product that is not exact is that of the high halves.
//
// Errors of exact products. A number is rounded to its high half. The low half is at most 2^-11 of the high half's
// power of two. It has 13 bits with its sign, of which TF32 keeps 12. So a product is off by at most 2^-21 |x y|, of
// which low times low is half. As a rule, it is off by some 2^-24, with either sign. Tensor cores cut off what they add
// to a sum instead of rounding it, which shows in sums of one sign. So what low halves add is summed apart. The rest is
// summed in sums of few terms, which are then added by other means. Low halves of numbers below 2^-110 lose digits.
// Numbers within 2^-12 of the end of float32 become infinities.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/mma/instructions.cuh"
#include "cuda/fused/mma/operand.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>
#include <numbers>

namespace annulus::mma {

// `count` numbers in TF32 and, for exact products, the rest of each number in float32. Instructions ignore what is
// behind TF32's 10 fraction bits.
template <bool exact, int count> struct SplitFloats {
    std::uint32_t high[count], low[exact ? count : 1];

    __device__ __forceinline__ void set(int i, float x) {
        if constexpr (exact) {
            // Rounds to nearest. (On compute capability 9.0, the instruction that does so becomes four.) A NaN may
            // become another number here, but is NaN in the low half.
            high[i] = (__float_as_uint(x) + 0x1000) & 0xffffe000;
            low[i] = __float_as_uint(x - __uint_as_float(high[i]));
        } else {
            // The instruction cuts off, which is as often up as down after this factor, whatever the number's first
            // digits are. A NaN stays NaN.
            constexpr float raises = 1 + std::numbers::ln2_v<float> / 2048;
            high[i] = __float_as_uint(x * raises);
        }
    }
};

// The sums of `count` products A B, for each strip.
template <bool exact, int strips, int count> struct SplitSums {
    float high[strips][count][4] = {}, low[strips][exact ? count : 1][4] = {};

    // Adds the product of A and B n to sum first + n, for each n and strip. It goes from sum to sum, since an addition
    // waits for the one before to the same sum.
    template <int at_once>
    __device__ __forceinline__ void add(const SplitFloats<exact, 4> (&a)[strips],
                                        const SplitFloats<exact, 2> (&b)[at_once], int first) {
        const auto add_each = [&](const auto &add) {
#pragma unroll
            for (int n = 0; n < at_once; ++n)
#pragma unroll
                for (int s = 0; s < strips; ++s)
                    add(s, n);
        };
        if constexpr (exact)
            add_each([&](int s, int n) { add_tf32_product(low[s][first + n], a[s].low, b[n].high); });
        add_each([&](int s, int n) { add_tf32_product(high[s][first + n], a[s].high, b[n].high); });
        if constexpr (exact)
            add_each([&](int s, int n) { add_tf32_product(low[s][first + n], a[s].high, b[n].low); });
    }
    // Returns element i of a strip's sums, which are counted one after the other.
    __device__ __forceinline__ float sum(int s, int i) const {
        if constexpr (exact)
            return high[s][i / 4][i % 4] + low[s][i / 4][i % 4];
        else
            return high[s][i / 4][i % 4];
    }
};

// result = A B^T, as for 16-bit elements. In every 16 columns, a lane reads four neighbours of a row, two for each of
// two products. A product's columns may be in any order.
template <bool exact, int columns, int rows, int strips>
__device__ __forceinline__ void multiply_float_rows(float (&result)[strips][rows / 2], std::uint32_t a, int first_row,
                                                    std::uint32_t b) {
    const int lane = FragmentThread<>().lane(), row = lane / 4; // read anew, as in multiply_rows()
    const auto load = [&](std::uint32_t matrix, int all_rows, int part) {
        return load_4_floats(matrix + (part / 8 * all_rows + row) * swizzled_row_bytes +
                             ((part % 8 + lane % 4 ^ swizzle_of_row<sizeof(float)>(row)) << 4));
    };
    constexpr int at_once = 2, max_columns = 64; // products at once; columns of one sum
#pragma unroll
    for (int first = 0; first < columns; first += max_columns) {
        SplitSums<exact, strips, rows / 8> sums;
#pragma unroll
        for (int column = first; column < columns && column < first + max_columns; column += 16) {
            SplitFloats<exact, 4> own[2][strips];
#pragma unroll
            for (int s = 0; s < strips; ++s)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float4 four =
                        load(a + (first_row + s * 16 + r * 8) * swizzled_row_bytes, row_block_rows, column / 4);
                    own[0][s].set(r, four.x);
                    own[0][s].set(2 + r, four.y);
                    own[1][s].set(r, four.z);
                    own[1][s].set(2 + r, four.w);
                }
#pragma unroll
            for (int i = 0; i < rows / 8; i += at_once) {
                SplitFloats<exact, 2> b_fragment[2][at_once];
#pragma unroll
                for (int n = 0; n < at_once; ++n) {
                    const float4 four = load(b + (i + n) * 8 * swizzled_row_bytes, rows, column / 4);
                    b_fragment[0][n].set(0, four.x);
                    b_fragment[0][n].set(1, four.y);
                    b_fragment[1][n].set(0, four.z);
                    b_fragment[1][n].set(1, four.w);
                }
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    sums.add(own[k], b_fragment[k], i);
            }
        }
#pragma unroll
        for (int s = 0; s < strips; ++s)
#pragma unroll
            for (int i = 0; i < rows / 2; ++i) {
                const float sum = sums.sum(s, i);
                result[s][i] = first == 0 ? sum : result[s][i] + sum;
            }
    }
}

// sum += A B, as for 16-bit elements, but in every 32 columns the thread has eight neighbours of each row
// (order_float_sums()). A lane reads four neighbours of each of two rows of B, one for each of four products.
template <bool exact, int columns, int rows, int strips, class Element>
__device__ __forceinline__ void add_float_block_product(float (&sum)[strips][columns / 2],
                                                        const Operand<Element, rows / 2> (&a)[strips],
                                                        std::uint32_t b) {
    static_assert(columns % 32 == 0);
    const int lane = FragmentThread<>().lane(); // read anew, as in multiply_rows()
    std::uint32_t own_part[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int row = lane % 4 * 2 + e;
        own_part[e] = b + row * swizzled_row_bytes + ((lane / 4 ^ swizzle_of_row<sizeof(float)>(row)) << 4);
    }
#pragma unroll
    for (int j = 0; j < columns / 32; ++j) {
        SplitSums<exact, strips, 4> block_sums;
#pragma unroll
        for (int i = 0; i < rows / 8; ++i) {
            SplitFloats<exact, 2> b_fragment[4];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float4 four = load_4_floats(own_part[e] + (j * rows + i * 8) * swizzled_row_bytes);
                b_fragment[0].set(e, four.x);
                b_fragment[1].set(e, four.y);
                b_fragment[2].set(e, four.z);
                b_fragment[3].set(e, four.w);
            }
            SplitFloats<exact, 4> own[strips];
#pragma unroll
            for (int s = 0; s < strips; ++s)
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        own[s].set(2 * e + r, a[s].elements[4 * i + 2 * r + e]);
            block_sums.add(own, b_fragment, 0);
        }
#pragma unroll
        for (int s = 0; s < strips; ++s)
#pragma unroll
            for (int i = 0; i < 16; ++i)
                sum[s][16 * j + i] += block_sums.sum(s, i);
    }
}

// Puts these sums into the order of a fragment. In every 32 columns, each of the four lanes of a row has eight
// neighbours. Neighbour 4 e + n of row r is in element 4 n + 2 r + e. The lanes exchange all pairs of neighbours but
// one.
template <int count> __device__ __forceinline__ void order_float_sums(float (&sum)[count]) {
    const int own = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int first = 0; first < count; first += 16)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float2 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = first + i % 2 * 8 + 2 * r + i / 2;
                pairs[i] = {sum[at], sum[at + 4]};
            }
#pragma unroll
            for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if (i & bit)
                        continue;
                    float2 &low = pairs[i], &high = pairs[i + bit];
                    const bool keeps_high = own & bit;
                    const float2 given = keeps_high ? low : high;
                    const float2 taken = {__shfl_xor_sync(~0u, given.x, bit), __shfl_xor_sync(~0u, given.y, bit)};
                    (keeps_high ? low : high) = taken;
                }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[first + 4 * i + 2 * r] = pairs[i].x;
                sum[first + 4 * i + 2 * r + 1] = pairs[i].y;
            }
        }
}

} // namespace annulus::mma
