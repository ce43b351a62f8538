// SPDX-License-Identifier: Apache-2.0
// The running softmax of Milakov and Gimelshein (2018), of the rows that a thread holds.
#pragma once

#include "cuda/fused/math/fragment.cuh"

#include <cmath>

namespace annulus {

// Largest m, in units of log2, of which the difference to a score is rounded so little that 2^difference, which is
// about 1 where the score is m, keeps all digits in float16.
constexpr float largest_maximum = 1 << 27;

// A maximum moves where probabilities by the one before would be larger than 2^this: O is then seldom rescaled, and
// float16 holds them. Any number near the maximum serves as well, since O and LSE do not depend on which it is.
constexpr float most_log2_probability = 8;

// Two rows a thread: row lane / 4 of its warp's 16, and 8 further; each lane has a part of their sums.
struct RunningSoftmax {
    float m[2], l[2];        // the maximum when it last moved
    float scale[2] = {1, 1}; // of O by the last update, if that moved any
    bool moved_any = false;  // whether it may have moved a maximum of the warp's rows

    __device__ __forceinline__ explicit RunningSoftmax(float padding_keys) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[r] = padding_keys > 0 ? 0 : -INFINITY;
            l[r] = threadIdx.x % 4 == 0 ? padding_keys : 0;
        }
    }

    // Scores become probabilities. `weight` is log2 of the multiplicity of the lane's two columns of eight. With
    // `may_be_hidden`, a row may have met no key yet. With `refuses_infinite`, an infinite score makes its row NaN.
    // Sums of so many `chains` do not wait for one another. Lanes exchange their maxima where one moves, or always:
    // what they exchange comes behind wgmma products that the warp has issued, but to ask takes a branch.
    template <bool may_be_hidden, bool refuses_infinite = false, int chains = 1, bool always_exchanges = false,
              int count>
    __device__ __forceinline__ void update(float (&s)[count], float c, float inverse_c, const float (&weight)[2]) {
        float maximum[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float most[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
            for (int i = 4; i < count; i += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    most[e] = fmaxf(most[e], s[i + 2 * r + e]);
            maximum[r] = fmaxf(m[r], fmaxf(fmaf(weight[0], inverse_c, most[0]), fmaf(weight[1], inverse_c, most[1])));
        }
        const auto moves = [&](int r) { return (m[r] - maximum[r]) * c < -most_log2_probability; };
        moved_any = always_exchanges || __any_sync(~0u, moves(0) || moves(1));
        if (moved_any) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                maximum[r] = max_of_row(maximum[r]);
                scale[r] = moves(r) ? exp2_fast((m[r] - maximum[r]) * c) : 1.f;
                m[r] = moves(r) ? maximum[r] : m[r];
                l[r] *= scale[r];
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float top = may_be_hidden && m[r] == -INFINITY ? 0.f : m[r];
            float sum[chains] = {l[r]};
            const float shift[2] = {fmaf(-top, c, weight[0]), fmaf(-top, c, weight[1])};
#pragma unroll
            for (int i = 0; i < count; i += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = s[i + 2 * r + e];
                    if constexpr (refuses_infinite)
                        sum[e % chains] = fmaf(x, 0.f, sum[e % chains]);
                    x = exp2_fast(fmaf(x, c, shift[e]));
                    sum[e % chains] += x;
                }
            l[r] = chains == 1 ? sum[0] : sum[0] + sum[chains - 1];
        }
    }

    template <int count> __device__ __forceinline__ void rescale(float (&o)[count]) const {
        if (!moved_any)
            return;
#pragma unroll
        for (int i = 0; i < count; ++i)
            o[i] *= scale[i >> 1 & 1];
    }
};

} // namespace annulus
