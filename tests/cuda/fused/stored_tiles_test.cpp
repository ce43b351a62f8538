// SPDX-License-Identifier: Apache-2.0
// Tests where dS is stored and multiplied. A warp on the host finds the tiles. A tile of keys and a tile of queries
// each meet every (query, key) pair of the definition once, in one pass or several, with the keys in one slice or
// several. Both must agree on where its dS lies.
#include "cuda/fused/math/stored_tile.cuh"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/schedule/find_tile.cuh" // with host_warp/ for its warp-wide functions

#include "support/mask.hpp"
#include "support/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

constexpr int row_blocks_of_tile = 2, block_rows = row_block_rows;

// A head, and the positions of a query and a key.
using Pair = std::tuple<int, int, int>;
// The place of an element of dS: its half image, and the numbers of the key and the query in it.
using Place = std::tuple<const std::uint8_t *, int, int>;

class StoredTiles {
  public:
    // A slice has `slice_keys` row blocks of keys, or all of them (0). A launch has these segments, or all (none).
    StoredTiles(const Problem &problem, const Window &queries, const Window &keys, int passes, int slice_keys,
                const Window &segments = {}) {
        annulus::Problem local = plan_problem_of(problem);
        local.queries = queries;
        local.keys = keys;
        const Plan plan(pattern_of(problem), local);
        const std::vector<PlannedGrid> key_grids =
            make_grids(plan, GridResult::key_gradients, {row_blocks_of_tile, block_rows});
        const std::vector<PlannedGrid> query_grids = make_grids(plan, GridResult::query_gradients, {2, block_rows});
        keys_ = work_of(key_grids.at(0).tiles);
        if (segments.length > 0)
            restrict_grid(key_grids[0],
                          {0, 1, 0, problem.heads, static_cast<int>(segments.start), static_cast<int>(segments.length)},
                          keys_);
        queries_ = work_of(query_grids.at(0).tiles);
        const BranchSpec &branch = problem.branches.front();
        const auto row_blocks = [&](const Window &window) {
            const std::int64_t segment_rows =
                branch.segment > 0 ? std::min(window.length, branch.segment) : window.length;
            const std::int64_t class_rows = (segment_rows + branch.dilation - 1) / branch.dilation;
            return static_cast<int>((class_rows + block_rows - 1) / block_rows);
        };
        StoredDs stored{};
        stored.batches = 1;
        stored.head_step = 1;
        stored.heads = problem.heads;
        stored.first_segment = keys_.sequence.first_segment;
        stored.segments = keys_.sequence.segments;
        stored.queries = (row_blocks(queries) + passes - 1) / passes;
        stored.keys = slice_keys > 0 ? slice_keys : row_blocks(keys);
        stored.slices = (row_blocks(keys) + stored.keys - 1) / stored.keys;
        stored.is_triangular = problem.causal && queries == keys;
        stored.turns.passes = (row_blocks(queries) + stored.queries - 1) / stored.queries;
        stored.cells_of_slice = FastDivmod(stored.segments * stored.heads);
        stored.turns.cells_of_pass = FastDivmod(stored.slices * stored.segments * stored.heads);
        stored.cells = stored.turns.passes * stored.turns.cells_of_pass.value;
        memory_.resize(static_cast<std::size_t>(stored.cells * stored.images_of_cell() * StoredDs::image_bytes));
        stored.images = memory_.data();
        keys_.stored_d_s = queries_.stored_d_s = stored;
    }

    int passes() const { return keys_.stored_d_s.turns.passes; }

    // Returns the places where tiles of keys store dS, with the pair of each.
    std::map<Place, Pair> store() {
        std::map<Place, Pair> stored;
        Tile<row_blocks_of_tile> tile{};
        for_each_turn((keys_.stored_d_s.keys + row_blocks_of_tile - 1) / row_blocks_of_tile,
                      [&](const StoredTurn &turn) {
                          bool is_found = false;
                          HostWarp::run([&] { is_found = find_storing_tile<block_rows>(keys_, turn, tile); });
                          if (is_found)
                              for (int u = 0; u < row_blocks_of_tile && tile.ranges > 0; ++u)
                                  store(tile, u, turn, stored);
                      });
        return stored;
    }

    // Returns the same, if a kernel that only stores has a launch for each pass.
    std::map<Place, Pair> store_alone() {
        std::map<Place, Pair> stored;
        Tile<row_blocks_of_tile> tile{};
        for (int pass = 0; pass < passes(); ++pass) {
            BackwardWork work = keys_;
            work.stored_d_s.launch_pass = pass;
            for (unsigned id = 0; id < work.tiles; ++id) {
                bool is_found = false;
                HostWarp::run([&] { is_found = find_storing_tile<block_rows>(work, id, tile); });
                if (is_found)
                    for (int u = 0; u < row_blocks_of_tile && tile.ranges > 0; ++u)
                        store(tile, u, StoredTurn{false, 0, pass, 0, 0}, stored);
            }
        }
        return stored;
    }

    // Returns the places of dS that tiles of queries multiply, with the pair of each. Each tile must find the counter
    // of its sums, and multiply the slices of its keys in their order.
    std::map<Place, Pair> multiply() {
        std::map<Place, Pair> multiplied;
        std::map<int, unsigned> sum_counters; // by slot
        std::map<int, int> next_keys;         // by slot: the first row block of keys that the sums lack
        for_each_turn(queries_.stored_d_s.query_tiles(), [&](const StoredTurn &turn) {
            StoredTile tile;
            if (!tile.find(queries_, turn))
                return;
            EXPECT_EQ(sum_counters[tile.sum_slot], tile.sum_counter);
            EXPECT_EQ(next_keys[tile.sum_slot], tile.first_key_block);
            multiply(tile, turn.pass, tile.first_key_block, tile.end_key_block, multiplied);
            sum_counters[tile.sum_slot] = tile.next_sum_counter;
            next_keys[tile.sum_slot] = tile.end_key_block < tile.key_blocks ? tile.end_key_block : 0;
        });
        for (const auto &[slot, counter] : sum_counters) { // the next launch begins with 0
            EXPECT_EQ(counter, 0U);
            EXPECT_EQ(next_keys[slot], 0);
        }
        return multiplied;
    }

    // Returns the same, if a kernel that only multiplies has a launch for each pass, and divides the keys of tiles.
    std::map<Place, Pair> multiply_alone(int splits) {
        std::map<Place, Pair> multiplied;
        const StoredDs &stored = queries_.stored_d_s;
        const int tiles = stored.query_tiles() * stored.segments * stored.heads;
        for (int pass = 0; pass < passes(); ++pass) {
            BackwardWork work = queries_;
            work.stored_d_s.launch_pass = pass;
            work.stored_d_s.splits = splits;
            for (int id = 0; id < tiles * splits; ++id)
                if (SplitTile tile; tile.find(work, id)) {
                    EXPECT_EQ(tile.slot, id);
                    multiply(tile, pass, tile.first_key_block, tile.end_key_block, multiplied);
                }
        }
        return multiplied;
    }

  private:
    static BackwardWork work_of(const TileGrid &tiles) {
        BackwardWork work{};
        static_cast<TileGrid &>(work) = tiles;
        work.destination = Destination::set_partial;
        return work;
    }

    template <class Use> void for_each_turn(int tiles, const Use &use) const {
        const StoredTurns &turns = keys_.stored_d_s.turns;
        for (int pass = 0; pass < turns.passes; ++pass)
            for (int cell = 0; cell < turns.cells_of_pass.value; ++cell)
                for (int index = 0; index < tiles; ++index)
                    use(StoredTurn{false, 0, pass, cell, index});
    }

    // Stores as a consumer does: blocks of queries from the first that sees the row block.
    void store(const Tile<row_blocks_of_tile> &tile, int u, const StoredTurn &turn, std::map<Place, Pair> &stored) {
        const RowBlock &row_block = tile.row_block[u];
        const auto &range = tile.range[0];
        if (row_block.rows == 0)
            return;
        const int segment = keys_.branches[0].length.quotient(row_block.first);
        const int first = std::max(segment * keys_.branches[0].length.value, keys_.sequence.row_start);
        const auto [images, distance] = keys_.stored_d_s.halves(
            tile.batch, tile.head, segment, (row_block.first - first) / row_block.stride / block_rows, turn.pass);
        const int blocks = range.part[u].blocks, all = (range.count + block_rows - 1) / block_rows;
        for (int at = blocks - 1; at >= 0; --at)
            for (int column = 0; column < block_rows; ++column) {
                const int index = range.count - (at + 1) * block_rows + column;
                for (int i = 0; i < row_block.rows; ++i) {
                    const int key = row_block.position(i);
                    if (index < 0 || (keys_.causal && range.count - 1 - index >= range.visible<true>(key)))
                        continue;
                    const std::uint8_t *half = images + (all - 1 - at) * StoredDs::half_bytes + i / 32 * distance;
                    const Pair pair{tile.head, range.first + index * range.stride, key};
                    EXPECT_TRUE(stored.insert({Place{half, i % 32, column}, pair}).second);
                }
            }
    }

    // Multiplies the row blocks of keys in [first_key, end_key), as the copying warps and the multiplying consumers do.
    void multiply(const StoredTile &tile, int pass, int first_key, int end_key, std::map<Place, Pair> &multiplied) {
        const StoredDs &stored = queries_.stored_d_s;
        const int first = tile.first_row_block;
        const int row_blocks = std::min(StoredDs::row_blocks_of_tile, tile.row_blocks() - first);
        const int lacking = tile.row_blocks() * block_rows - tile.queries;
        for (int key_block = first_key; key_block < end_key; ++key_block) {
            const auto [images, distance] = stored.halves(tile.batch, tile.head, tile.segment, key_block, pass);
            for (int u = std::max(key_block - tile.seen_by_all - first, 0); u < row_blocks; ++u)
                for (int row = 0; row < block_rows; ++row)
                    for (int i = 0; i < block_rows; ++i) {
                        const int query_index = (first + u) * block_rows - lacking + row;
                        const int key_index = key_block * block_rows + i;
                        const int query = tile.first + query_index * tile.stride;
                        const int key = tile.first_key + key_index * tile.stride;
                        if (query_index < 0 || key_index >= tile.keys || (queries_.causal && key > query))
                            continue;
                        const std::uint8_t *half = images + (first + u) * StoredDs::half_bytes + i / 32 * distance;
                        const Pair pair{tile.head, query, key};
                        EXPECT_TRUE(multiplied.insert({Place{half, i % 32, row}, pair}).second);
                    }
        }
    }

    BackwardWork keys_, queries_;
    std::vector<std::uint8_t> memory_;
};

std::set<Pair> pairs_of(const std::map<Place, Pair> &places) {
    std::set<Pair> pairs;
    for (const auto &[place, pair] : places)
        EXPECT_TRUE(pairs.insert(pair).second);
    return pairs;
}

// Returns the pairs of these queries and keys, by the definition.
std::set<Pair> wanted_pairs(const Problem &problem, const Window &queries, const Window &keys) {
    std::set<Pair> wanted;
    const Mask mask(problem);
    for (int head = 0; head < problem.heads; ++head)
        for (auto query = static_cast<int>(queries.start); query < queries.end(); ++query)
            for (const std::int64_t key : mask.keys(query, head).positions)
                if (key >= keys.start && key < keys.end())
                    wanted.insert({head, query, static_cast<int>(key)});
    return wanted;
}

void expect_each_pair_once(const Problem &problem, const Window &queries, const Window &keys) {
    const std::set<Pair> wanted = wanted_pairs(problem, queries, keys);
    for (const int passes : {1, 2, 3})
        for (const int slice_keys : {0, 2}) {
            if (slice_keys > 0 && passes == 2)
                continue;
            SCOPED_TRACE(testing::Message() << problem << " queries " << queries.start << " + " << queries.length
                                            << ", keys " << keys.start << " + " << keys.length << ", passes " << passes
                                            << ", slices of " << slice_keys << " row blocks");
            StoredTiles tiles(problem, queries, keys, passes, slice_keys);
            EXPECT_EQ(tiles.passes(), passes);
            const std::map<Place, Pair> stored = tiles.store();
            EXPECT_TRUE(stored == tiles.multiply());
            if (passes == 3 && slice_keys == 0) {
                EXPECT_TRUE(stored == tiles.store_alone());
                for (const int splits : {1, 5})
                    EXPECT_TRUE(stored == tiles.multiply_alone(splits));
            }
            EXPECT_TRUE(pairs_of(stored) == wanted);
        }
}

// The last segment is shorter than the first queries of some passes.
TEST(StoredTiles, MeetEachPairOnce) {
    for (const bool causal : {false, true}) {
        const auto expect = [&](std::int64_t length, std::int64_t segment, std::int64_t dilation) {
            const Problem problem = {.length = length,
                                     .heads = 2,
                                     .dim = 128,
                                     .branches = {{.segment = segment, .dilation = dilation}},
                                     .causal = causal,
                                     .dtype = ANNULUS_BFLOAT16};
            expect_each_pair_once(problem, {0, length}, {0, length});
        };
        expect(384, 0, 1);
        expect(289, 0, 1);
        expect(500, 331, 1);
        expect(1000, 790, 3);
    }
}

// A launch may have some of the segments, and the last launch fewer.
TEST(StoredTiles, OfSomeSegmentsMeetEachPairOnce) {
    for (const bool causal : {false, true}) {
        const Problem problem = {.length = 901,
                                 .heads = 2,
                                 .dim = 128,
                                 .branches = {{.segment = 201}},
                                 .causal = causal,
                                 .dtype = ANNULUS_BFLOAT16};
        const Window rows{0, problem.length};
        const std::set<Pair> wanted = wanted_pairs(problem, rows, rows);
        for (const int passes : {1, 2})
            for (const int slice_keys : {0, 2}) {
                SCOPED_TRACE(testing::Message() << problem << " passes " << passes << ", slices of " << slice_keys);
                std::set<Pair> met;
                for (const Window &segments : {Window{0, 3}, {3, 2}}) {
                    StoredTiles tiles(problem, rows, rows, passes, slice_keys, segments);
                    const std::map<Place, Pair> stored = tiles.store();
                    EXPECT_TRUE(stored == tiles.multiply());
                    for (const Pair &pair : pairs_of(stored))
                        EXPECT_TRUE(met.insert(pair).second);
                }
                EXPECT_TRUE(met == wanted);
            }
    }
}

// Under causality a part of a row block of queries may see no key of a row block, although its last queries do.
TEST(StoredTiles, TellWhichKeysPartsOfRowBlocksSee) {
    for (const int queries : {64, 65, 96, 97, 127, 129, 200})
        for (const int seen_by_all : {0, 2}) {
            StoredTile tile{};
            tile.queries = queries;
            tile.seen_by_all = seen_by_all;
            const int lacking = tile.row_blocks() * block_rows - queries;
            for (int row_block = 0; row_block < tile.row_blocks(); ++row_block)
                for (const int row : {0, 32})
                    for (int key_block = 0; key_block < seen_by_all + tile.row_blocks(); ++key_block) {
                        bool any = false;
                        for (int i = row; i < row + 32; ++i) {
                            const int query = row_block * block_rows + i - lacking; // below 0: no such query
                            any |= query >= 0 && query >= (key_block - seen_by_all) * block_rows;
                        }
                        EXPECT_EQ(tile.sees(row_block, row, 32, key_block), any)
                            << queries << " queries, row " << row << " of row block " << row_block << ", keys of "
                            << key_block << ", of which all queries see " << seen_by_all;
                    }
        }
}

// What ranks have of a segment: the same rows, or rows of which no keys are hidden.
TEST(StoredTiles, OfRanksMeetEachPairOnce) {
    for (const std::int64_t dilation : {1, 2}) {
        Problem problem = {.length = 650 * dilation,
                           .heads = 2,
                           .dim = 128,
                           .branches = {{.segment = 0, .dilation = dilation}},
                           .dtype = ANNULUS_BFLOAT16};
        const std::int64_t cut = 277 * dilation, rest = problem.length - cut;
        expect_each_pair_once(problem, {0, cut}, {cut, rest});
        expect_each_pair_once(problem, {cut, rest}, {0, cut});
        for (const bool causal : {false, true}) {
            problem.causal = causal;
            expect_each_pair_once(problem, {cut, rest}, {cut, rest});
        }
    }
}

} // namespace
} // namespace annulus::test
