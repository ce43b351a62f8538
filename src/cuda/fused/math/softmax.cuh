// SPDX-License-Identifier: Apache-2.0
// The running softmax of Milakov and Gimelshein (2018), of the rows that a thread holds.
#pragma once

#include "cuda/fused/math/fragment.cuh"

#include <cmath>

namespace annulus {

// The largest m, in units of log2, for which the difference of a score and m is rounded little enough: 2^difference,
// which is about 1 for a score of m, then keeps all digits in float16.
constexpr float largest_maximum = 1 << 27;

// If maxima are searched for, m moves only if a probability by the old m would be larger than 2^this. So O is seldom
// rescaled, and float16 holds the probabilities. Any number near the maximum serves as well, since O and LSE do not
// depend on which it is.
constexpr float max_log2_probability = 8;

// If maxima are not searched for, m moves only if a lane's probabilities of a row add up to more than this in a block.
// They are at most 32. Up to this sum, float16 holds each of them. After a search for the block's maximum, they add up
// to at most 32 * 2^8.
constexpr float max_sum = 1 << 15;

// Each thread has two rows: row lane / 4 of its warp's 16 rows, and the row 8 further. Each lane has a part of their
// sums.
struct RunningSoftmax {
    float m[2], l[2];        // m: the maximum when it last moved
    float scale[2] = {1, 1}; // the factor of O from the last update, valid if moved_any
    bool moved_any = false;  // whether the last update may have moved a maximum of the warp's rows

    __device__ __forceinline__ explicit RunningSoftmax(float padding_keys) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[r] = padding_keys > 0 ? 0 : -INFINITY;
            l[r] = threadIdx.x % 4 == 0 ? padding_keys : 0;
        }
    }

    // Turns scores into probabilities and adds them to l. `weight` is log2 of the multiplicities of the lane's two
    // columns of every eight.
    // - `may_be_hidden`: a row may have met no key yet.
    // - `refuses_infinite`: an infinite score makes its row NaN.
    // - `chains`: sums are added up in this many chains, which do not wait for one another.
    // - `always_exchanges`: lanes always exchange their maxima, not only if a maximum moves. An exchange waits for the
    //   wgmma products that the warp has issued, but asking whether one moves takes a branch.
    template <bool may_be_hidden, bool refuses_infinite = false, int chains = 1, bool always_exchanges = false,
              int count>
    __device__ __forceinline__ void update(float (&s)[count], float c, float inverse_c, const float (&weight)[2]) {
        float maximum[2];
        find_maxima(s, inverse_c, weight, maximum);
        const auto moves = [&](int r) { return (m[r] - maximum[r]) * c < -max_log2_probability; };
        moved_any = always_exchanges || __any_sync(~0u, moves(0) || moves(1));
        if (moved_any)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                maximum[r] = max_of_row(maximum[r]);
                move(r, moves(r), maximum[r], c);
            }
        find_probabilities<may_be_hidden, refuses_infinite, chains>(s, c, weight, l);
    }

    // Turns scores into probabilities by the maxima as they are, and adds the probabilities to `sum`.
    template <bool may_be_hidden, bool refuses_infinite = false, int chains = 1, int count>
    __device__ __forceinline__ void find_probabilities(float (&s)[count], float c, const float (&weight)[2],
                                                       float (&sum)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float top = may_be_hidden && m[r] == -INFINITY ? 0.f : m[r];
            float chain_sum[chains] = {sum[r]};
            const float shift[2] = {fmaf(-top, c, weight[0]), fmaf(-top, c, weight[1])};
#pragma unroll
            for (int i = 0; i < count; i += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = s[i + 2 * r + e];
                    if constexpr (refuses_infinite)
                        chain_sum[e % chains] = fmaf(x, 0.f, chain_sum[e % chains]);
                    x = exp2_fast(fmaf(x, c, shift[e]));
                    chain_sum[e % chains] += x;
                }
            sum[r] = chains == 1 ? chain_sum[0] : chain_sum[0] + chain_sum[chains - 1];
        }
    }

    // Adds `sum` to l and returns true if the maxima of all the warp's rows are near enough to those of a block. `sum`
    // is the lane's sum of the block's probabilities by the old maxima. It is NaN or infinite for a row that had met no
    // key.
    __device__ __forceinline__ bool add_if_near(const float (&sum)[2]) {
        if (!__all_sync(~0u, is_near(sum[0]) && is_near(sum[1])))
            return false;
        add(sum);
        return true;
    }
    // Returns for which of the lane's rows the sum is too large, one bit each. For use if add_if_near() has returned
    // false.
    __device__ __forceinline__ static unsigned far_rows(const float (&sum)[2]) {
        const unsigned first = __ballot_sync(~0u, !is_near(sum[0])), second = __ballot_sync(~0u, !is_near(sum[1]));
        const unsigned lanes_of_row = 0xfu << (threadIdx.x & 0x1c);
        return (first & lanes_of_row ? 1 : 0) | (second & lanes_of_row ? 2 : 0);
    }
    // Moves the maxima of `rows`, and turns scores into probabilities by the new maxima. No row's results depend on
    // what other rows did.
    template <int count>
    __device__ __forceinline__ void update_far(float (&s)[count], float c, float inverse_c, const float (&weight)[2],
                                               unsigned rows) {
        float maximum[2], sum[2] = {0, 0};
        find_maxima(s, inverse_c, weight, maximum);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            move(r, rows >> r & 1, max_of_row(maximum[r]), c);
        find_probabilities<false>(s, c, weight, sum);
        add(sum); // in one addition, as add_if_near() does, for the same rounding
        moved_any = true;
    }

    template <int count> __device__ __forceinline__ void rescale(float (&o)[count]) const {
        if (!moved_any)
            return;
#pragma unroll
        for (int i = 0; i < count; ++i)
            o[i] *= scale[i >> 1 & 1];
    }

  private:
    __device__ __forceinline__ void add(const float (&sum)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            l[r] += sum[r];
    }
    // Finds the lane's maxima of the rows' scores so far.
    template <int count>
    __device__ __forceinline__ void find_maxima(const float (&s)[count], float inverse_c, const float (&weight)[2],
                                                float (&maximum)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
            for (int i = 4; i < count; i += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    largest[e] = fmaxf(largest[e], s[i + 2 * r + e]);
            maximum[r] =
                fmaxf(m[r], fmaxf(fmaf(weight[0], inverse_c, largest[0]), fmaf(weight[1], inverse_c, largest[1])));
        }
    }
    __device__ __forceinline__ void move(int r, bool moves, float maximum, float c) {
        scale[r] = moves ? exp2_fast((m[r] - maximum) * c) : 1.f;
        m[r] = moves ? maximum : m[r];
        l[r] *= scale[r];
    }
    __device__ __forceinline__ static bool is_near(float sum) {
        return sum <= max_sum;
    }
};

} // namespace annulus
