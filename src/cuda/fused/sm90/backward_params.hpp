// SPDX-License-Identifier: Apache-2.0
// What a launch of a fused backward kernel is given.
#pragma once

#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/schedule/kernel_shape.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace annulus {

// Whether there are kernels that store dS instead of computing it twice: below 65 columns two products take less time
// than writing and reading their result.
constexpr bool stores_d_s(int head_dim) {
    return head_dim > 64 && head_dim <= most_columns_of_both;
}

// dS of the only branch of some heads and segments in images: of 64 keys and 64 queries each, rows of keys as in
// shared memory. For each batch entry, head, segment and row block of keys one image for each row block of queries,
// under causality, where both are of the same rows, for those from the same number on.
struct StoredDs {
    std::uint8_t *images;
    int first_batch, batches, first_head, head_step, heads, first_segment, segments;
    int queries, keys; // row blocks of a segment, at most
    bool is_triangle;  // of images

    static constexpr int image_bytes = row_block_rows * row_block_rows * 2;
    static constexpr int row_blocks_of_tile = 4; // of queries, of the kernel that multiplies

    __host__ __device__ std::int64_t images_of_segment() const {
        return is_triangle ? std::int64_t{queries} * (queries + 1) / 2 : std::int64_t{queries} * keys;
    }
    // Where that of the first row block of queries is, or would be.
    __device__ __forceinline__ std::uint8_t *image(int batch, int head, int segment, int key_block) const {
        std::int64_t index = std::int64_t{batch - first_batch} * heads + (head - first_head) / head_step;
        index = (index * segments + segment - first_segment) * images_of_segment();
        index += std::int64_t{key_block} * queries;
        if (is_triangle)
            index -= std::int64_t{key_block} * (key_block + 1) / 2;
        return images + index * image_bytes;
    }
};

struct BackwardParams : BackwardWork {
    CUtensorMap range_scores[2 * most_strides], range_values[2 * most_strides];
    StoredDs kept;
};

} // namespace annulus
