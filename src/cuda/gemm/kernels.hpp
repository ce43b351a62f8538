// SPDX-License-Identifier: Apache-2.0
// The kernels of the gemm engine: what lies between the matrix products. All run on `stream`, none synchronises.
//
// Row p of a block's state belongs to query position p of a batch entry and head; its index is TileItem::state + p. The
// running softmax is in units of log2: m the largest score, l the sum of 2^(score - m), O unnormalised. m may lag
// behind the largest score by `lazy_maximum`: 2^lazy_maximum is far from overflow, and O is rescaled less often.
#pragma once

#include "cuda/device/device_rows.hpp"
#include "cuda/gemm/tiles.hpp"
#include "cuda/results/softmax_state.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace annulus {

// Of one tile of a launch: where its rows are.
struct TileItem {
    Tile tile;
    std::int64_t state;     // + position: row of the queries' state
    std::int64_t key_state; // row of the gradients of the block's first key, backward
};

// The matrices that the products of a tile read and write; each has an array of pointers, one for each tile.
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

// Where the operand of a tile begins: base + a multiple of each of the tile's indices, in bytes. The row is that of the
// tile's first query or key, (its position - start) / stride.
struct OperandAddress {
    char *base = nullptr; // null: not used
    std::int64_t batch = 0, head = 0, row = 0, slot = 0;
    std::int64_t start = 0, stride = 1;
    bool of_keys = false;
};

struct ItemArguments {
    TileSet set;
    std::int64_t first, count; // tiles of the set
    std::int64_t per_launch;   // tile i has slot i % per_launch in its launch
    std::int32_t heads_per_kv_head;
    Block block;             // whose state the items point into
    std::int64_t key_stride; // positions to a row of its keys' gradients
    std::array<OperandAddress, operand_count> operands;
    TileItem *items;
    void **pointers; // [operand_count, capacity]
    std::int64_t capacity;
};

// Writes items and pointers of some tiles of a set.
void write_items(const ItemArguments &arguments, cudaStream_t stream);

// The rows of one side of a launch's tiles, copied side by side: [tiles, count, D]. Rows outside the window, and those
// from `present` on, are zeros.
struct PackedTensor {
    DeviceRows source;
    void *rows; // null: nothing to pack
};

struct PackArguments {
    const TileItem *items;
    std::int64_t tiles;
    std::int32_t count, present; // rows of a tile
    std::int64_t stride;
    bool of_keys;
    std::int32_t heads_per_kv_head, head_dim;
    Curve curve;
    Window window;
    std::array<PackedTensor, 2> tensors;
    std::int64_t *positions; // [tiles, count]: of each row, or -1 where it is absent
};
void pack_rows(annulus_dtype dtype, const PackArguments &arguments, cudaStream_t stream);

// What the kernels on score matrices have in common. Scores are [tiles, queries, pitch] float32.
struct ScoreArguments {
    const TileItem *items;
    std::int64_t tiles;
    std::int32_t queries, keys, pitch;
    std::int64_t query_stride, key_stride;
    bool masked;                                         // causal
    bool absent_rows;                                    // rows may be absent
    const std::int64_t *query_positions, *key_positions; // of packed tiles, else null: linear order
    std::int32_t head_dim;
    float *scores;    // Q K^T
    float scale_log2; // scale log2(e), their factor: cuBLAS may apply one to Q, which could overflow
    bool has_hidden;  // scores of -infinity are those of keys that do not count. Else one that counts makes its row NaN
};

// Multiplies scores by scale_log2, and then sets those of keys that the query has in one of the first `earlier`
// branches to -infinity: whatever follows takes the scores as they are, with the factor 1 and `has_hidden`. What is
// infinite before becomes NaN.
struct RepeatedKeyArguments {
    ScoreArguments score;
    const BranchPlan *branches; // on the device
    std::int32_t earlier;
};
void hide_repeated_keys(const RepeatedKeyArguments &arguments, cudaStream_t stream);

// Running softmax: scores become probabilities (of the dtype, in the same place, at twice the pitch where it is half as
// wide), the state moves on, O is rescaled.
struct SoftmaxArguments {
    ScoreArguments score;
    float padding_keys; // keys of score 0 and value 0 to be added
    bool fresh;         // the state holds nothing yet and O is overwritten by the product that follows
    float2 *state;      // m, l
    float *o;
    // Of tiles that are all their queries meet (`fresh`): instead of moving the state on, divide the probabilities by
    // their sum and write LSE to `lse`, if it is wanted.
    bool complete;
    DeviceRows lse;
};
void softmax(annulus_dtype dtype, const SoftmaxArguments &arguments, cudaStream_t stream);

// Scores become P, and d_scores (dO V^T) becomes dS = scale P (dO V^T - delta), delta = O . dO - dLSE.
struct GradientArguments {
    ScoreArguments score;
    float *d_scores; // null: dS is not wanted
    bool wants_probabilities;
    float scale;
    DeviceRows out, d_out, lse, d_lse;
};
void score_gradients(annulus_dtype dtype, const GradientArguments &arguments, cudaStream_t stream);

// Adds the rows of packed tiles to the rows of the state, target[row of the position] += rows[…], or overwrites these.
struct AddArguments {
    const TileItem *items;
    std::int64_t tiles;
    std::int32_t count, head_dim;
    bool of_keys, overwrite;
    std::int64_t key_start, key_stride; // of the block's keys
    const std::int64_t *positions;
    const float *rows;
    float *target;
};
void add_rows(const AddArguments &arguments, cudaStream_t stream);

} // namespace annulus
