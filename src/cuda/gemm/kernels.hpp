// SPDX-License-Identifier: Apache-2.0
// The kernels of the gemm engine that run between the matrix products. All run on `stream`; none synchronises.
//
// Row p of a block's state belongs to query position p of a batch entry and head; its index is TileItem::state + p. The
// running softmax is in units of log2: m is the largest score, l the sum of 2^(score - m), and O is not normalised. m
// may lag behind the largest score by `lazy_maximum`, so that O is rescaled less often. 2^lazy_maximum is far from
// overflow.
#pragma once

#include "cuda/device/device_rows.hpp"
#include "cuda/gemm/tiles.hpp"
#include "cuda/results/softmax_state.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace annulus {

// One tile of a launch and the rows of the state that it uses.
struct TileItem {
    Tile tile;
    std::int64_t state;     // add a position for the row of that query's state
    std::int64_t key_state; // backward: row of the gradients of the block's first key
};

// The matrices that the products of a tile read and write. Each has an array of pointers, one for each tile.
enum Operand {
    operand_q,
    operand_k,
    operand_v,
    operand_d_out,
    operand_scores,
    operand_d_scores,
    operand_o,
    operand_d_k,
    operand_d_v,
    operand_count
};

// The address of a tile's operand: base + a multiple of each of the tile's indices, in bytes. The row index is that of
// the tile's first query or key, (its position - start) / stride.
struct OperandAddress {
    char *base = nullptr; // null: not used
    std::int64_t batch = 0, head = 0, row = 0, slot = 0;
    std::int64_t start = 0, stride = 1;
    bool is_key_side = false;
};

struct ItemArguments {
    TileSet set;
    std::int64_t first, count;     // tiles of the set
    std::int64_t tiles_per_launch; // tile i has slot i % tiles_per_launch in its launch
    std::int32_t heads_per_kv_head;
    Block block;             // the items point into the state of this block
    std::int64_t key_stride; // positions between rows of the keys' gradients
    std::array<OperandAddress, operand_count> operands;
    TileItem *items;
    void **pointers; // [operand_count, capacity]
    std::int64_t capacity;
};

// Writes items and pointers for `count` tiles of a set, from tile `first` on.
void write_items(const ItemArguments &arguments, cudaStream_t stream);

// The rows of one side of a launch's tiles, copied one behind the other: [tiles, count, D]. Rows outside the window,
// and rows from `present` on, are zero.
struct PackedTensor {
    DeviceRows source;
    void *rows; // null: this tensor is not packed
};

struct PackArguments {
    const TileItem *items;
    std::int64_t tiles;
    std::int32_t count, present; // rows of a tile
    std::int64_t stride;
    bool is_key_side;
    std::int32_t heads_per_kv_head, head_dim;
    Curve curve;
    Window window;
    std::array<PackedTensor, 2> tensors;
    std::int64_t *positions; // [tiles, count]: the position of each row, or -1 for an absent row
};
void pack_rows(annulus_dtype dtype, const PackArguments &arguments, cudaStream_t stream);

// What the kernels on score matrices have in common. Scores are [tiles, queries, pitch] in float32.
struct ScoreArguments {
    const TileItem *items;
    std::int64_t tiles;
    std::int32_t queries, keys, pitch;
    std::int64_t query_stride, key_stride;
    bool is_masked;                                      // the bounds hide some keys from some queries
    KeyBounds bounds;                                    // of the branch
    bool has_absent_rows;                                // some rows may be absent
    const std::int64_t *query_positions, *key_positions; // for packed tiles; null: linear order
    std::int32_t head_dim;
    float *scores;    // Q K^T
    float scale_log2; // scale log2(e), by which kernels multiply scores: cuBLAS may apply a factor to Q, which could
                      // overflow
    bool has_hidden;  // scores of -infinity belong to keys that do not count; otherwise an infinite score makes its row
                      // NaN
};

// Multiplies scores by scale_log2. Then sets the scores of keys that the query already has in one of the first
// `earlier` branches to -infinity. The kernels after this one use the factor 1 and `has_hidden`. A score that was
// infinite before becomes NaN.
struct RepeatedKeyArguments {
    ScoreArguments score;
    const BranchPlan *branches; // on the device
    std::int32_t earlier;
};
void hide_repeated_keys(const RepeatedKeyArguments &arguments, cudaStream_t stream);

// The running softmax: replaces scores by probabilities, updates the state and rescales O. Probabilities have the dtype
// and lie in the place of the scores, at twice the pitch if the dtype has half the width.
struct SoftmaxArguments {
    ScoreArguments score;
    float padding_keys; // number of keys with score 0 and value 0 to add
    bool is_fresh;      // the state holds nothing yet, and the next product overwrites O
    float2 *state;      // m, l
    float *o;
    // For tiles with all keys of their queries (`is_fresh`). Divides the probabilities by their sum and writes LSE to
    // `lse`, if it is wanted. Does not update the state.
    bool is_complete;
    DeviceRows lse;
};
void softmax(annulus_dtype dtype, const SoftmaxArguments &arguments, cudaStream_t stream);

// Replaces scores by P, and d_scores (dO V^T) by dS = scale P (dO V^T - delta), with delta = O . dO - dLSE.
struct GradientArguments {
    ScoreArguments score;
    float *d_scores; // null: dS is not computed
    bool wants_probabilities;
    float scale;
    DeviceRows out, d_out, lse, d_lse;
};
void score_gradients(annulus_dtype dtype, const GradientArguments &arguments, cudaStream_t stream);

// Adds the rows of packed tiles to rows of the state: target[row of the position] += rows[…]. With `overwrite`, stores
// them instead.
struct AddArguments {
    const TileItem *items;
    std::int64_t tiles;
    std::int32_t count, head_dim;
    bool is_key_side, overwrites;
    std::int64_t key_start, key_stride; // of the block's keys
    const std::int64_t *positions;
    const float *rows;
    float *target;
};
void add_rows(const AddArguments &arguments, cudaStream_t stream);

} // namespace annulus
