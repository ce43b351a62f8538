// SPDX-License-Identifier: Apache-2.0
// Tiles that store dS, and tiles that multiply stored dS. A tile that stores is some row blocks of keys. A tile that
// multiplies is some row blocks of queries, neighbours in a class.
#pragma once

#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/schedule/cell.hpp"
#include "cuda/fused/schedule/find_tile.cuh"

namespace annulus {

// Finds the tile at a place among tiles that store: row blocks of keys, which meet the queries of a pass. A whole warp
// calls it. Returns false if there is no such tile. With `skips_empty` there are no tiles that meet no query.
template <int range_block_rows, int row_blocks>
__device__ __forceinline__ bool find_storing_tile(const BackwardWork &work, const TilePlace &place, int pass,
                                                  bool skips_empty, Tile<row_blocks> &tile) {
    const SequenceGrid &sequence = work.sequence;
    const GridBranch &branch = work.branches[0];
    const int start = (sequence.first_segment + place.segment) * branch.length.value;
    const auto [first_query, end_of_queries] = work.stored_d_s.queries_of_pass(
        max(start, sequence.range_start), sequence.range_start + sequence.range_count, branch.dilation.value, pass);
    return find_tile_of_branch<true, range_block_rows>(work, place, first_query, end_of_queries, skips_empty, tile);
}

// Finds the tile of a turn that stores.
template <int range_block_rows, int row_blocks>
__device__ __forceinline__ bool find_storing_tile(const BackwardWork &work, const StoredTurn &turn,
                                                  Tile<row_blocks> &tile) {
    const StoredDs &stored = work.stored_d_s;
    TilePlace place{};
    const int slice = stored.cells_of_slice.quotient(turn.cell), cell = stored.cells_of_slice.remainder(turn.cell);
    place.index = slice * (stored.keys / row_blocks) + turn.index; // if there are several, each is whole tiles
    place.segment = cell % stored.segments;
    const int head = cell / stored.segments;
    place.head = head % stored.heads;
    place.batch = head / stored.heads;
    const bool skips_empty = stored.destination(work.destination, turn.pass) == Destination::add_to_partial;
    return find_storing_tile<range_block_rows>(work, place, turn.pass, skips_empty, tile);
}

// Finds tile `id` of a launch that only stores.
template <int range_block_rows, int row_blocks>
__device__ __forceinline__ bool find_storing_tile(const BackwardWork &work, unsigned id, Tile<row_blocks> &tile) {
    return find_storing_tile<range_block_rows>(work, find_place<true>(work, work.sequence, true, static_cast<int>(id)),
                                               work.stored_d_s.launch_pass, work.skips_empty, tile);
}

struct StoredTile {
    int batch, head, segment;
    int first, stride, queries; // the class's queries in the segment: the first's position, their distance and number
    int first_key, keys;        // the same for its keys
    int first_row_block; // index of the tile's first row block of queries; row blocks count from the last query (Range)
    int key_blocks;      // row blocks of keys that the tile's queries see
    int seen_by_all; // how many of them all queries see; each row block of queries sees one more than the one before
    int first_key_block, end_key_block; // the row blocks of keys that are multiplied
    // With several slices of keys: the slot of the tile's sums, and their counter before and after the tile
    // (StoredDs::sum_counters).
    int sum_slot;
    unsigned sum_counter, next_sum_counter;

    __device__ __forceinline__ int row_blocks() const { return quotient_up(queries, row_block_rows); }
    // Returns how many rows the first row block of queries lacks.
    __device__ __forceinline__ int lacking() const { return row_blocks() * row_block_rows - queries; }
    // Returns a row block of queries by its index.
    __device__ __forceinline__ RowBlockFromLast row_block(int index) const {
        return {first + (index * row_block_rows - lacking()) * stride, stride, index == 0 ? lacking() : 0};
    }

    // Returns whether the last of `rows` queries exists and sees a key of a row block. The first of the queries is row
    // `row` of a row block.
    __device__ __forceinline__ bool sees(int row_block, int row, int rows, int key_block) const {
        return row_block * row_block_rows + row + rows - lacking() > max((key_block - seen_by_all) * row_block_rows, 0);
    }

    // Finds the tile with this group of row blocks among a cell's queries of a pass.
    __device__ __forceinline__ bool find(const BackwardWork &work, int cell, int pass, int group) {
        const StoredDs &stored = work.stored_d_s;
        const GridBranch &branch = work.branches[0];
        segment = stored.first_segment + cell % stored.segments;
        cell /= stored.segments;
        head = stored.first_head + cell % stored.heads * stored.head_step;
        batch = stored.first_batch + cell / stored.heads;
        if (!branch.serves(head))
            return false;
        const SequenceGrid &sequence = work.sequence;
        const int start = segment * branch.length.value;
        const int end = min(start + branch.length.value, sequence.sequence_length);
        const int residue = branch.dilation.remainder(start + branch.phase(head));
        const auto [first_query, end_of_queries] =
            stored.queries_of_pass(max(start, sequence.row_start), min(end, sequence.row_start + sequence.row_count),
                                   branch.dilation.value, pass);
        const Members queries_of_class(first_query, end_of_queries, residue, branch.dilation);
        const Members keys_of_class(max(start, sequence.range_start),
                                    min(end, sequence.range_start + sequence.range_count), residue, branch.dilation);
        stride = branch.dilation.value;
        first = queries_of_class.first;
        queries = queries_of_class.count;
        first_key = keys_of_class.first;
        keys = keys_of_class.count;
        first_row_block = group * StoredDs::row_blocks_of_tile;
        key_blocks = quotient_up(keys, row_block_rows);
        seen_by_all = key_blocks;
        if (stored.is_triangular) {
            seen_by_all = min(key_blocks, stored.queries_before(pass));
            key_blocks =
                min(key_blocks, seen_by_all + min(first_row_block + StoredDs::row_blocks_of_tile, row_blocks()));
        }
        first_key_block = 0;
        end_key_block = key_blocks;
        return first_row_block < row_blocks();
    }

    // Finds the tile of a turn that multiplies. Returns false if it has no queries, or if these see no key of a slice
    // after the first. The tile of the first slice is found even without keys, since dQ must then become 0.
    __device__ __forceinline__ bool find(const BackwardWork &work, const StoredTurn &turn) {
        const StoredDs &stored = work.stored_d_s;
        const int slice = stored.cells_of_slice.quotient(turn.cell), cell = stored.cells_of_slice.remainder(turn.cell);
        const int tiles = stored.query_tiles(), group = tiles - 1 - turn.index;
        // A segment has the most queries in the last pass. So a tile that had queries in a pass has them in all later
        // ones.
        const bool follows = slice == 0 && turn.pass > 0 && find(work, cell, turn.pass - 1, group);
        if (!find(work, cell, turn.pass, group))
            return false;
        first_key_block = slice * stored.keys;
        end_key_block = min(key_blocks, first_key_block + stored.keys);
        if (slice > 0 && first_key_block >= end_key_block)
            return false;
        const unsigned number = turn.pass * stored.slices + slice;
        sum_slot = cell * tiles + turn.index;
        sum_counter = slice > 0 || follows ? number : 0;
        next_sum_counter =
            end_key_block < key_blocks ? number + 1 : (turn.pass + 1) % stored.turns.passes * stored.slices;
        return true;
    }
};

// What a CTA multiplies at a time, in a launch that only multiplies: some keys of a tile, one of StoredDs::splits
// parts.
struct SplitTile : StoredTile {
    int slot; // of its sums; slots of a tile follow one another, in the order of the keys

    // Finds split `id` of a launch. Returns false if there is no such tile or the branch does not serve the head.
    __device__ __forceinline__ bool find(const BackwardWork &work, int id) {
        const StoredDs &stored = work.stored_d_s;
        slot = id;
        const int split = id % stored.splits;
        id /= stored.splits;
        const int groups = stored.query_tiles();
        const int all_segments = stored.segments * stored.heads * stored.batches;
        const int group = groups - 1 - (work.by_length ? id / all_segments : id % groups);
        if (!StoredTile::find(work, work.by_length ? id % all_segments : id / groups, stored.launch_pass, group))
            return false;
        first_key_block = key_blocks * split / stored.splits;
        end_key_block = key_blocks * (split + 1) / stored.splits;
        return true;
    }
};

// The split tiles of this CTA. CTAs take them in alternating order, forwards and backwards, so that all CTAs have the
// same amount of work.
struct StoredTiles {
    unsigned turn = 0;

    // Finds the next tile. Returns false if there is none left.
    __device__ __forceinline__ bool next(const BackwardWork &work, SplitTile &tile) {
        while (turn * gridDim.x < work.tiles) {
            const unsigned id = turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
            ++turn;
            if (id < work.tiles && tile.find(work, static_cast<int>(id)))
                return true;
        }
        return false;
    }
};

} // namespace annulus
