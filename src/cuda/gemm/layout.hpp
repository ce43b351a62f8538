// SPDX-License-Identifier: Apache-2.0
// How the gemm engine divides a problem so that it fits into its workspace: blocks with a float32 state of their own,
// which run independently of one another, and the largest tile of scores. A function of the plan and the limit alone.
//
// Forward, a block is a window of queries of some heads; it meets all keys. Backward, where every segment lies inside
// one window of positions, a block is such a window of queries and keys, and each tile is computed once for all three
// gradients. Where windows that long do not fit, blocks of queries yield dQ and blocks of keys yield dK and dV, and the
// scores are computed twice. Where only dV is wanted there are blocks of keys alone.
#pragma once

#include "cuda/gemm/tiles.hpp"

#include <annulus/attention.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus {

// Blocks that yield the same results: windows x batch entries x heads.
struct BlockGrid {
    // A block has a window of the rows that it yields results for, and the whole of the others.
    bool query_results = true; // O, or dQ
    bool key_results = false;  // dK and dV
    std::int64_t window = 0;   // positions; windows begin at multiples of it
    std::int64_t first_window = 0, windows = 0;
    std::int64_t batches = 0, batch_blocks = 0; // of a block; blocks over the batch
    std::int32_t heads = 0, head_blocks = 0;

    std::int64_t count() const { return windows * batch_blocks * head_blocks; }
    // Block i; its windows are cut to the problem's.
    Block block(const Plan &plan, std::int64_t i) const;
};

// Where blocks have their results while they are at work: in a state of their own; where it can be, straight in the
// caller's tensors; or in the partial results of a part of a call, which all blocks share.
enum class Results { in_state, direct, in_partial };

struct GemmLayout {
    // Direct only where one tile alone computes each row of the results: its products are the results.
    Results results = Results::in_state;
    std::vector<BlockGrid> grids;              // run one after the other
    int workers = 1;                           // blocks at work at the same time
    std::int64_t tile = 0;                     // most queries and keys of a tile
    std::int64_t query_rows = 0, key_rows = 0; // of the largest block's state
    std::int64_t tiles = 0;                    // most tiles with items at a time
    std::size_t score_bytes = 0;               // of a worker: score matrices and packed rows
    std::size_t blas_bytes = 0;                // of a worker: cuBLAS's own workspace

    bool has_state() const { return results == Results::in_state; }
    // Of a worker. Grids follow one another and use the same memory.
    std::int64_t state_bytes(const Plan &plan, annulus_pass pass) const;
};

// Bytes that a tile takes in a launch: scores, and with `packed` the rows of Q, K, V, dO and of the products as well,
// their numbers rounded up to a multiple of score_pitch_unit.
std::int64_t tile_bytes(const Problem &problem, annulus_pass pass, std::int64_t queries, std::int64_t keys,
                        bool packed);

// Score rows begin at multiples of this many floats: 16 bytes in every dtype.
constexpr std::int64_t score_pitch_unit = 8;
constexpr std::int64_t score_pitch(std::int64_t keys) {
    return divide_up(keys, score_pitch_unit) * score_pitch_unit;
}

// Whether a tile's rows are packed before the products although they are matrices in the caller's tensors: those along
// a curve, and those of odd numbers, which slow cuBLAS down and are filled up with absent rows.
bool needs_packing(const TileSet &set);

// Aims at `limit` bytes for everything; where that is too little, the smallest layout. `direct` is a permission, of
// tensors that are matrices to cuBLAS.
GemmLayout make_layout(const Plan &plan, annulus_pass pass, std::uint64_t limit, int most_workers, Results results);

} // namespace annulus
