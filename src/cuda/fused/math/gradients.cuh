// SPDX-License-Identifier: Apache-2.0
// Probabilities and gradients of scores for backward, from the LSE and delta of queries. The rows of a fragment are
// rows of a row block, its columns are rows of a range. So a query's LSE and delta belong to a row or, if row blocks
// are of keys, to a column.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/math/shared_rows.cuh"

namespace annulus {

// LSE or delta of the thread's two rows.
struct RowStatistic {
    float row[2];

    // Returns the numbers for elements i to i + 3: two columns of two rows.
    __device__ __forceinline__ float4 at(int) const { return {row[0], row[0], row[1], row[1]}; }
};

// LSE or delta of the thread's columns, in shared memory.
struct ColumnStatistic {
    const float *first;

    __device__ __forceinline__ float4 at(int i) const {
        const float2 two = load_8_bytes(shared_address(first + 2 * i));
        return {two.x, two.y, two.x, two.y};
    }
};

// LSE or delta of the thread's columns. The eight lanes that have the same columns keep a part of the numbers each, and
// get the others from one another. That takes few registers, and no reads from shared memory beside products.
template <int columns> struct SharedColumnStatistic {
    float2 pairs[columns / 64];

    __device__ __forceinline__ explicit SharedColumnStatistic(const float *first) {
        const FragmentThread<> own;
#pragma unroll
        for (int i = 0; i < columns / 64; ++i)
            pairs[i] = load_8_bytes(shared_address(first + 64 * i + 8 * (own.lane() / 4) + own.column()));
    }
    __device__ __forceinline__ float4 at(int i) const {
        const float2 &pair = pairs[i / 4 / 8];
        const float x = from(pair.x, i / 4 % 8), y = from(pair.y, i / 4 % 8);
        return {x, y, x, y};
    }

  private:
    // Returns the number of lane 4 `group` + lane % 4. The mask 3 keeps the two low bits of the lane's number.
    __device__ __forceinline__ static float from(float x, int group) {
        float y;
        asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x31f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(4 * group));
        return y;
    }
};

// Turns S into P. With `hides`, elements that the mask hides become 0.
template <bool hides, int count, class Mask, class Statistic>
__device__ __forceinline__ void find_probabilities(float (&s)[count], float scale_log2, const float (&weight)[2],
                                                   const Statistic &lse_log2, const Mask &mask) {
#pragma unroll
    for (int i = 0; i < count; i += 4) {
        const float4 lse = lse_log2.at(i);
        const float shift[4] = {weight[0] - lse.x, weight[1] - lse.y, weight[0] - lse.z, weight[1] - lse.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float x = exp2_fast(fmaf(s[i + e], scale_log2, shift[e]));
            s[i + e] = hides && mask.is_hidden(i + e) ? 0.f : x;
        }
    }
}

// Calls store(j, elements j and j + 1 of dS) for each pair of columns; p_at(j) returns elements j and j + 1 of P. With
// `hides`, elements that the mask hides become 0.
template <bool hides, int count, class PAt, class Mask, class Statistic, class Store>
__device__ __forceinline__ void find_d_s(const float (&d_p)[count], const PAt &p_at, const Statistic &delta_of,
                                         const Mask &mask, const Store &store) {
#pragma unroll
    for (int i = 0; i < count; i += 4) {
        const float4 delta = delta_of.at(i);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int j = i + 2 * r;
            float2 two = p_at(j);
            two = {two.x * (d_p[j] - (r ? delta.z : delta.x)), two.y * (d_p[j + 1] - (r ? delta.w : delta.y))};
            if constexpr (hides) // a hidden row's dP may be anything
                two = {mask.is_hidden(j) ? 0.f : two.x, mask.is_hidden(j + 1) ? 0.f : two.y};
            store(j, two);
        }
    }
}

} // namespace annulus
