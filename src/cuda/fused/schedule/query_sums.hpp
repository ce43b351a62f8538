// SPDX-License-Identifier: Apache-2.0
// The order in which CTAs add to the sums of dQ, in closed form, and where the sums lie.
//
// One kernel finds dQ, dK and dV of the only branch of a grid. Its tiles are KV tiles. dK and dV of a tile are sums
// over the queries, which one CTA adds up. dQ of a Q block is a sum over the KV tiles that meet it, and each of them
// has a CTA. They add one after the other, in an order that is the same in every call, so that every call gives the
// same bits.
//
// A cell is a segment of a head of a batch entry. A tile goes through the Q blocks that it meets from the first queries
// to the last. Tiles come in the order of their keys, the last keys first. Under causality the last keys meet the
// fewest queries. So the tiles that meet a Q block are consecutive in this order, up to the tile with the first keys. A
// tile's turn is the number of tiles that add to a Q block before it. Under causality the tile before it begins a
// tile's rows of queries later, so it is ahead from the beginning.
//
// CTAs take tiles by their numbers, in ascending order. Some cells are worked on at once: their tiles alternate, so
// that neighbours in time seldom wait for one another. Cells of the same segment are neighbours, and L2 keeps their
// rows:
//
//     number         0   1   2   3   4   5   6   7   8   9   10  11
//     cell           0   1   0   1   0   1   2   3   2   3   2   3       two cells at once, three tiles in each
//     keys of tile   2   2   1   1   0   0   2   2   1   1   0   0
//
// A tile waits only for tiles of its cell with lower numbers. CTAs took those tiles before, and each CTA works on its
// tiles in the order in which it took them. So every tile ends, no matter how many CTAs run at a time.
#pragma once

#include "cuda/fused/schedule/cell.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

struct QuerySums {
    static constexpr int tile_row_blocks = 2, tile_rows = tile_row_blocks * row_block_rows; // keys of a KV tile

    FastDivmod heads, segments; // of a launch; cells count heads first, then segments, then batch entries
    int cells;
    int tiles, blocks;                       // KV tiles and Q blocks of a cell, at most
    int block_floats;                        // of the sum of a Q block
    FastDivmod cells_at_once, cells_of_last; // of a group of cells; the last group may have fewer
    FastDivmod tiles_of_group;               // of every group but the last
    int wave;                                // tiles of a ring; 0: none
    int running_tiles;                       // how many tiles of a cell run at a time, about
    float *sums;                             // for each cell and Q block, in the order of fragments
    unsigned *added;                         // how many tiles have added to each of these sums; starts at 0

    struct Cell {
        int head, segment, batch; // indices in the launch
    };
    constexpr Cell cell(int index) const {
        const int head = heads.remainder(index), rest = heads.quotient(index);
        return {head, segments.remainder(rest), segments.quotient(rest)};
    }

    // How many numbers there are. A short last segment has fewer tiles than numbers.
    constexpr int count() const { return cells * tiles; }
    struct TilePlace {
        int cell, index; // the index counts from the first keys of the cell
    };
    constexpr TilePlace place(int number) const {
        const int group = tiles_of_group.quotient(number), rest = tiles_of_group.remainder(number);
        const int first = group * cells_at_once.value;
        const FastDivmod &at_once = first + cells_at_once.value <= cells ? cells_at_once : cells_of_last;
        return {first + at_once.remainder(rest), tiles - 1 - at_once.quotient(rest)};
    }

    // Returns how many tiles add to a Q block before a tile. The Q block's last query is at `last_query`, and the tile
    // begins with the key at `first_key`, which that query sees. `later_tiles` tiles of the cell have later keys.
    static constexpr int turn(bool causal, int last_query, int first_key, const FastDivmod &key_dilation,
                              int later_tiles) {
        if (!causal)
            return later_tiles;
        const int seen = key_dilation.quotient(last_query - first_key) / tile_rows;
        return seen < later_tiles ? seen : later_tiles;
    }

    // Returns whether any tile adds to a Q block, of whose cell's queries `later_queries` come after it.
    static constexpr bool has_sum(bool causal, const Members &queries, int query_dilation, int later_queries,
                                  const Members &keys) {
        return keys.count > 0 &&
               (!causal || keys.first <= queries.first + query_dilation * (queries.count - 1 - later_queries));
    }

    // Returns the index of a Q block among the sums. Q blocks count from the last queries of the cell.
    constexpr std::int64_t block(int cell_index, int block_of_cell) const {
        return std::int64_t{cell_index} * blocks + block_of_cell;
    }
    constexpr float *sum(std::int64_t block_index) const { return sums + block_index * block_floats; }
};

// What a tile tells the warps that send its parts of dQ.
struct SummingTile {
    int cell, later_tiles, tiles;
    // The step at which the tile begins, of n.
    constexpr int first_step(int wave, int n) const {
        if (wave == 0 || n == 0)
            return 0;
        const int w = wave < n ? wave : n;
        return later_tiles % w * (n / w);
    }
    constexpr int ring_turn(int wave, int n, int step) const {
        const int w = wave < n ? wave : n, k = n / w, before = later_tiles / w * w, i = later_tiles - before;
        const int all = tiles - before < w ? tiles - before : w;
        const int most = step / k < all - 1 ? step / k : all - 1;
        return before + (i <= most ? most - i : most + 1 + all - 1 - i);
    }
    bool may_be_first_to_run; // the tile before it in the order may have ended long ago
};

} // namespace annulus
