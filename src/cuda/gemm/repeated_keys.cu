// SPDX-License-Identifier: Apache-2.0
// The key rule `once`: hides repeated keys between the product of scores and the softmax. Each row of scores has a
// warp.
#include "core/class_pairs.hpp"
#include "cuda/device/kernel_common.cuh"
#include "cuda/gemm/kernels.hpp"

namespace annulus {

namespace {

// Returns a modulo b, for numbers >= 0. Uses 32 bits if they suffice.
__device__ std::int64_t remainder_of(std::int64_t a, std::int64_t b) {
    if (((a | b) >> 32) == 0)
        return static_cast<std::uint32_t>(a) % static_cast<std::uint32_t>(b);
    return a % b;
}

__global__ void __launch_bounds__(block_threads) repeated_keys_kernel(const RepeatedKeyArguments a) {
    const ScoreArguments &s = a.score;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (block_threads / 32) + threadIdx.x / 32;
    if (row >= s.tiles * s.queries)
        return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float *const scores = s.scores + row * s.pitch;
    for (int j = lane; j < s.keys; j += 32) {
        const float score = __fmul_rn(scores[j], s.scale_log2);
        scores[j] = score + (score - score); // NaN if the score is infinite
    }

    const std::int64_t index = row / s.queries;
    const Tile &tile = s.items[index].tile;
    const std::int64_t query = s.query_positions
                                   ? s.query_positions[row]
                                   : tile.segment_start + tile.query + (row - index * s.queries) * s.query_stride;
    if (query < 0)
        return;
    const auto key = [&](int j) {
        return s.key_positions ? s.key_positions[index * s.keys + j] : tile.segment_start + tile.key + j * s.key_stride;
    };
    for (std::int32_t i = 0; i < a.earlier; ++i) {
        const BranchPlan &branch = a.branches[i];
        const ClassPair pair = pair_of_query(branch, tile.head, query);
        if (pair.queries.count == 0 || pair.keys.count == 0)
            continue;
        const Window range = seen_keys(branch, query, pair.segment.range);
        const std::int64_t last = pair.keys[pair.keys.count - 1];
        for (int j = lane; j < s.keys; j += 32) {
            const std::int64_t position = key(j);
            if (position < range.start || position >= range.end())
                continue;
            const std::int64_t place = pair.segment.place(position);
            if (place >= pair.keys.first && place <= last &&
                remainder_of(place - pair.keys.first, pair.keys.stride) == 0)
                scores[j] = -INFINITY;
        }
    }
}

} // namespace

void hide_repeated_keys(const RepeatedKeyArguments &a, cudaStream_t stream) {
    launch("hide_repeated_keys", repeated_keys_kernel, grid_for(a.score.tiles * a.score.queries, block_threads / 32),
           stream, a);
}

} // namespace annulus
