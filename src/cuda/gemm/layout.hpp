// SPDX-License-Identifier: Apache-2.0
// How the gemm engine divides a problem so that it fits into its workspace. It divides it into independent blocks, with
// a float32 state each, and into tiles of scores of limited size. The layout depends on the plan and the limit alone.
//
// Forward, a block is a window of queries of some heads, which meets all keys. Backward, if every segment lies inside
// one window of positions, a block is such a window of queries and keys. Each tile is then computed once for all three
// gradients. If windows of that length do not fit, blocks of queries compute dQ, and blocks of keys compute dK and dV,
// so that scores are computed twice. If only dV is wanted, there are only blocks of keys.
#pragma once

#include "cuda/gemm/tiles.hpp"

#include <annulus/attention.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus {

// Blocks that compute the same kinds of results: windows x batch entries x heads.
struct BlockGrid {
    // A block has a window of the rows whose results it computes, and all rows of the other side.
    bool query_results = true; // O, or dQ
    bool key_results = false;  // dK and dV
    std::int64_t window = 0;   // in positions; windows begin at multiples of it
    std::int64_t first_window = 0, windows = 0;
    std::int64_t batches = 0, batch_blocks = 0; // batch entries of a block; blocks over the batch
    std::int32_t heads = 0, head_blocks = 0;

    std::int64_t count() const { return windows * batch_blocks * head_blocks; }
    // Returns block i, with its windows clipped to the problem's.
    Block block(const Plan &plan, std::int64_t i) const;
};

// The place of blocks' results during the computation: a state of their own, the caller's tensors (direct), or
// partial results that several key scopes and all blocks share.
enum class Results { in_state, direct, in_partial };

struct GemmLayout {
    // `direct` requires that one tile alone computes each row of the results.
    Results results = Results::in_state;
    std::vector<BlockGrid> grids;              // one grid runs after the other
    int workers = 1;                           // number of blocks that are computed at the same time
    std::int64_t tile = 0;                     // largest number of queries, and of keys, of a tile
    std::int64_t query_rows = 0, key_rows = 0; // rows of the largest block's state
    std::int64_t tiles = 0;                    // largest number of tiles that have items at a time
    std::size_t score_bytes = 0;               // for each worker: score matrices and packed rows
    std::size_t blas_bytes = 0;                // for each worker: the workspace of cuBLAS

    bool has_state() const { return results == Results::in_state; }
    // Returns the bytes of a worker's state. Grids run one after the other and use the same memory.
    std::int64_t state_bytes(const Plan &plan, annulus_pass pass) const;
};

// Returns the bytes of a tile in a launch: its scores, and with `packed` also the rows of Q, K, V, dO and of the
// products. With `packed`, row counts are rounded up to a multiple of score_pitch_unit.
std::int64_t tile_bytes(const Problem &problem, annulus_pass pass, std::int64_t queries, std::int64_t keys,
                        bool packed);

// Score rows begin at multiples of this many floats: 16 bytes in every dtype.
constexpr std::int64_t score_pitch_unit = 8;
constexpr std::int64_t score_pitch(std::int64_t keys) {
    return divide_up(keys, score_pitch_unit) * score_pitch_unit;
}

// True if a tile's rows are packed before the products even if they are matrices in the caller's tensors. This holds
// for rows along a curve. It also holds for odd row counts, which slow cuBLAS down: absent rows are added to them.
bool needs_packing(const TileSet &set);

// Returns a layout that needs at most `limit` bytes, or the smallest one if none fits. `direct` only permits direct
// results. It requires tensors that are matrices to cuBLAS.
GemmLayout make_layout(const Plan &plan, annulus_pass pass, std::uint64_t limit, int max_workers, Results results);

} // namespace annulus
