// SPDX-License-Identifier: Apache-2.0
// Tests the order in which tiles of keys add to sums of dQ. A warp on the host finds the tiles by their numbers. They
// meet every (query, key) pair of the definition once. A tile adds to a Q block in its turn, which comes after earlier
// numbers alone. The rows that are written of the sums are the queries that met keys.
#include "cuda/fused/plan/backward_plan.hpp"
#include "cuda/fused/schedule/find_summing_tile.cuh" // with host_warp/ for its warp-wide functions
#include "cuda/fused/sm90/kernels.hpp"

#include "support/mask.hpp"
#include "support/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr int multiprocessors = 6; // few, so that small problems have several waves of tiles

// A batch entry, a head, and the positions of a query and a key, in one number: 16 bits each.
using Pair = std::uint64_t;
Pair pair_of(int batch, int head, int query, int key) {
    return static_cast<Pair>(batch) << 48 | static_cast<Pair>(head) << 32 | static_cast<Pair>(query) << 16 |
           static_cast<Pair>(key);
}
// An element of the sums: the index of a Q block's sum in the launch, and the row in it.
using SumRow = std::pair<std::int64_t, int>;

// The launches of a plan in the way the engine makes them, one tile after the other.
class FiveProducts {
  public:
    FiveProducts(const Problem &problem, const Window &queries, const Window &keys, int block_rows, int batches,
                 int heads, int segments)
        : block_rows_(block_rows) {
        annulus::Problem local = plan_problem_of(problem);
        local.queries = queries;
        local.keys = keys;
        const Plan plan(pattern_of(problem), local);
        // The tiles of the two-kernel grids have other sizes, which must not matter here.
        const PlannedGrid key_grid = make_grids(plan, GridResult::key_gradients, {3, 64}).at(0);
        const PlannedGrid query_grid = make_grids(plan, GridResult::query_gradients, {2, 64}).at(0);
        const BranchSpec &branch = problem.branches.front();
        const auto rows_of_cell = [&](const Window &window, std::int64_t stride) {
            const std::int64_t rows = branch.segment > 0 ? std::min(window.length, branch.segment) : window.length;
            return static_cast<int>((rows + stride - 1) / stride);
        };
        const bool every = key_grid.tiles.branches[0].range_dilation.value == 1;
        QuerySumsParts parts{batches,
                             heads,
                             segments,
                             key_grid.tiles.sequence.first_segment,
                             key_grid.tiles.sequence.segments,
                             64,
                             (rows_of_cell(keys, branch.dilation) + QuerySums::tile_rows - 1) / QuerySums::tile_rows,
                             (rows_of_cell(queries, every ? 1 : branch.dilation) + block_rows - 1) / block_rows,
                             block_rows,
                             multiprocessors};
        const int group = local.heads / local.kv_heads;
        for (int batch = 0; batch < problem.batch; batch += batches)
            for (int segment = 0; segment < parts.all_segments; segment += segments)
                for (int head = 0; head < local.kv_heads; head += heads)
                    for (int member = 0; member < group; ++member) {
                        const GridPart part{batch,
                                            std::min<int>(batches, static_cast<int>(problem.batch) - batch),
                                            head * group + member,
                                            std::min(heads, local.kv_heads - head),
                                            parts.first_segment + segment,
                                            std::min(segments, parts.all_segments - segment)};
                        TileGrid key_tiles = key_grid.tiles, query_tiles = query_grid.tiles;
                        restrict_grid(key_grid, part, key_tiles);
                        restrict_grid(query_grid, part, query_tiles);
                        query_tiles.head_step = group;
                        run(key_tiles, query_tiles, parts.layout(part.batches, part.heads, part.segments));
                    }
    }

    // All pairs that are met, in ascending order. A pair that is met twice is there twice.
    std::vector<Pair> pairs() const {
        std::vector<Pair> sorted = pairs_;
        std::ranges::sort(sorted);
        return sorted;
    }
    // The rows of dQ that are written: batch entry, head and query.
    const std::set<std::tuple<int, int, int>> &written() const { return written_; }

  private:
    // Takes the tiles of a launch in the order of their numbers, and then writes dQ.
    void run(const TileGrid &keys, const TileGrid &queries, const QuerySums &sums) {
        std::map<std::int64_t, int> added; // how many tiles have added to a sum
        std::map<SumRow, std::tuple<int, int, int>> rows;
        for (int number = 0; number < sums.count(); ++number) {
            Tile<QuerySums::tile_row_blocks, 1> tile{};
            SummingTile summing{};
            bool is_found = false;
            const auto find = [&](auto rows_of_block) {
                HostWarp::run([&] {
                    is_found = find_summing_tile<decltype(rows_of_block)::value>(keys, sums, number, tile, summing);
                });
            };
            if (block_rows_ == 64)
                find(std::integral_constant<int, 64>());
            else
                find(std::integral_constant<int, 128>());
            if (!is_found || tile.ranges == 0)
                continue;
            const auto &range = tile.range[0];
            for (int at = 0; at < range.blocks; ++at) {
                ASSERT_LT(at, sums.blocks);
                const std::int64_t block = sums.block(summing.cell, at);
                ASSERT_LT(block, std::int64_t{sums.cells} * sums.blocks);
                // In its turn: all tiles that come before have lower numbers.
                ASSERT_EQ(added[block]++, turn_of(keys, tile, summing, block_rows_, at));
                for (int row = 0; row < block_rows_; ++row) {
                    const int index = range.count - (at + 1) * block_rows_ + row;
                    if (index < 0)
                        continue;
                    const int query = range.first + index * range.stride;
                    const auto placed = rows.insert({{block, row}, {tile.batch, tile.head, query}}).first;
                    ASSERT_EQ(placed->second, std::tuple(tile.batch, tile.head, query));
                    for (int u = 0; u < QuerySums::tile_row_blocks; ++u)
                        meet(keys, tile, u, at, row, query);
                }
            }
        }
        write(queries, sums, added, rows);
    }

    // Notes the keys of a row block that a query attends to, as consumers do.
    void meet(const TileGrid &grid, const Tile<QuerySums::tile_row_blocks, 1> &tile, int u, int at, int row,
              int query) {
        const RowBlock &row_block = tile.row_block[u];
        const auto &range = tile.range[0];
        for (int i = 0; i < row_block.rows; ++i) {
            const int key = row_block.position(i);
            const int visible = grid.causal ? range.template visible<true>(key) : range.count;
            const bool hides = at >= (row_block.rows == row_block_rows ? range.part[u].full_blocks : 0);
            if (hides && row < block_rows_ - (visible - at * block_rows_)) // Mask::is_hidden
                continue;
            pairs_.push_back(pair_of(tile.batch, tile.head, query, key));
        }
    }

    // Writes dQ as the kernel for it does: row blocks of 64, from the last queries on.
    void write(const TileGrid &grid, const QuerySums &sums, std::map<std::int64_t, int> &added,
               std::map<SumRow, std::tuple<int, int, int>> &rows) {
        const SequenceGrid &sequence = grid.sequence;
        const GridBranch &grid_branch = grid.branches[0];
        for (int cell_index = 0; cell_index < sums.cells; ++cell_index) {
            const QuerySums::Cell cell = sums.cell(cell_index);
            const int head = grid.first_head + cell.head * grid.head_step, batch = grid.first_batch + cell.batch;
            const CellBranch branch(grid_branch, grid_branch.length, sequence.sequence_length, head,
                                    (sequence.first_segment + cell.segment) * sequence.segment_length);
            const Members queries =
                rows_of_segment(grid_branch, branch, sequence.row_start, sequence.row_start + sequence.row_count);
            for (int index = 0; index < queries.count; ++index) {
                const int from_last = queries.count - 1 - index;
                const int query = queries.first + index * branch.row_dilation;
                ASSERT_LT(from_last / block_rows_, sums.blocks);
                const std::int64_t block = sums.block(cell_index, from_last / block_rows_);
                const Members keys = ranges_of_segment(grid_branch, branch, sequence.range_start,
                                                       sequence.range_start + sequence.range_count);
                const bool has_sum = sums.has_sum(grid.causal, queries, branch.row_dilation,
                                                  from_last / block_rows_ * block_rows_, keys);
                ASSERT_EQ(has_sum, added[block] > 0);
                if (has_sum) {
                    const int row = block_rows_ - 1 - from_last % block_rows_;
                    ASSERT_EQ(rows.at({block, row}), std::tuple(batch, head, query));
                }
                ASSERT_TRUE(written_.insert({batch, head, query}).second);
            }
        }
    }

    const int block_rows_;
    std::vector<Pair> pairs_;
    std::set<std::tuple<int, int, int>> written_;
};

void expect_each_pair_once(const Problem &problem, const Window &queries, const Window &keys) {
    std::vector<Pair> wanted; // in ascending order
    std::set<std::tuple<int, int, int>> with_keys;
    const Mask mask(problem);
    for (int batch = 0; batch < problem.batch; ++batch)
        for (int head = 0; head < problem.heads; ++head)
            for (auto query = static_cast<int>(queries.start); query < queries.end(); ++query)
                for (const std::int64_t key : mask.keys(query, head).positions)
                    if (key >= keys.start && key < keys.end()) {
                        wanted.push_back(pair_of(batch, head, query, static_cast<int>(key)));
                        with_keys.insert({batch, head, query});
                    }
    const int kv_heads = problem.kv();
    for (const int block_rows : {64, 128})
        for (const auto &[batches, heads, segments] :
             {std::tuple(static_cast<int>(problem.batch), kv_heads, 1 << 20), {1, 1, 1}, {1, kv_heads, 2}}) {
            SCOPED_TRACE(testing::Message()
                         << problem << " queries " << queries.start << " + " << queries.length << ", keys "
                         << keys.start << " + " << keys.length << ", Q blocks of " << block_rows << ", launches of "
                         << batches << ", " << heads << ", " << segments);
            const FiveProducts found(problem, queries, keys, block_rows, batches, heads, segments);
            EXPECT_TRUE(found.pairs() == wanted);
            EXPECT_TRUE(std::ranges::includes(found.written(), with_keys));
        }
}

// With 385 rows, a Q block ends with the query of a tile's first key.
TEST(FiveProducts, MeetEachPairOnceInTurn) {
    for (const bool causal : {false, true})
        for (const annulus_query_rule rule : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_EVERY})
            for (const auto &[length, segment, dilation] :
                 {std::tuple(384, 0, 1), {385, 0, 1}, {500, 331, 1}, {601, 130, 1}, {1000, 790, 3}, {900, 256, 2}}) {
                if (rule == ANNULUS_QUERY_EVERY && dilation == 1)
                    continue; // the same problem
                expect_each_pair_once({.batch = 2,
                                       .length = length,
                                       .heads = 3,
                                       .dim = 64,
                                       .branches = {{.segment = segment, .dilation = dilation, .query = rule}},
                                       .causal = causal,
                                       .dtype = ANNULUS_BFLOAT16},
                                      {0, length}, {0, length});
            }
}

// Heads of Q that share a head of K have launches of their own.
TEST(FiveProducts, OfGroupsMeetEachPairOnceInTurn) {
    for (const bool causal : {false, true})
        expect_each_pair_once({.length = 429,
                               .heads = 6,
                               .kv_heads = 2,
                               .dim = 64,
                               .branches = {{.segment = 200, .dilation = 1}},
                               .causal = causal,
                               .dtype = ANNULUS_BFLOAT16},
                              {0, 429}, {0, 429});
}

// Windows of queries, and what ranks have: keys and queries at different positions. Under causality some queries have
// no keys, and some keys no queries.
TEST(FiveProducts, OfWindowsMeetEachPairOnceInTurn) {
    for (const bool causal : {false, true})
        for (const std::int64_t segment : {0, 271})
            for (const std::int64_t dilation : {1, 2}) {
                const Problem problem = {.length = 650,
                                         .heads = 2,
                                         .dim = 64,
                                         .branches = {{.segment = segment, .dilation = dilation}},
                                         .causal = causal,
                                         .dtype = ANNULUS_BFLOAT16};
                expect_each_pair_once(problem, {277, 373}, {277, 373});
                expect_each_pair_once(problem, {277, 373}, {0, 650});
                expect_each_pair_once(problem, {300, 200}, {130, 311});
                expect_each_pair_once(problem, {0, 333}, {204, 446}); // a Q block ends with the first key
            }
}

// Cells are worked on side by side, and each tile of each cell has one number.
TEST(QuerySumsOrder, HasEachTileOnce) {
    for (const int cells : {1, 5, 12, 13, 25, 100})
        for (const int tiles : {1, 2, 7}) {
            const QuerySums sums = QuerySumsParts{1, 1, 1, 0, 1, 64, tiles, 3, 128, 132}.layout(1, cells, 1);
            std::set<std::pair<int, int>> found;
            std::vector<int> next(static_cast<std::size_t>(cells), tiles - 1);
            int most_apart = 0;
            ASSERT_EQ(sums.count(), cells * tiles);
            for (int number = 0; number < sums.count(); ++number) {
                const QuerySums::TilePlace place = sums.place(number);
                ASSERT_TRUE(place.cell >= 0 && place.cell < cells);
                ASSERT_TRUE(found.insert({place.cell, place.index}).second);
                ASSERT_EQ(next[static_cast<std::size_t>(place.cell)]--, place.index); // the last keys come first
                const auto first_unfinished = std::ranges::find_if(next, [](int left) { return left >= 0; });
                most_apart = std::max(most_apart, place.cell - static_cast<int>(first_unfinished - next.begin()));
            }
            EXPECT_LT(most_apart, sums.cells_at_once.value);
        }
}

// Q, dO and sums of the cells that are worked on at once fit into the L2 cache.
TEST(QuerySumsOrder, KeepsCellsInL2) {
    const auto cells_at_once = [](int head_dim, int queries) {
        return QuerySumsParts{1, 1, 1, 0, 1, head_dim, 9, queries / 64, 64, 132}.layout(1, 12, 1).cells_at_once.value;
    };
    EXPECT_EQ(cells_at_once(64, 2048), 12);
    EXPECT_EQ(cells_at_once(64, 16384), 4);
    EXPECT_EQ(cells_at_once(128, 16384), 2);
    EXPECT_EQ(cells_at_once(128, 262144), 1);
}

// The cells of a launch are the heads of a segment, then the next segment, then the next batch entry.
TEST(QuerySumsOrder, CountsHeadsFirst) {
    const QuerySums sums = QuerySumsParts{1, 1, 1, 0, 1, 128, 2, 3, 64, 132}.layout(2, 3, 4);
    ASSERT_EQ(sums.cells, 2 * 3 * 4);
    int index = 0;
    for (int batch = 0; batch < 2; ++batch)
        for (int segment = 0; segment < 4; ++segment)
            for (int head = 0; head < 3; ++head) {
                const QuerySums::Cell cell = sums.cell(index++);
                EXPECT_EQ(std::tuple(cell.batch, cell.segment, cell.head), std::tuple(batch, segment, head));
            }
    EXPECT_EQ(sums.block_floats, 64 * 128);
    EXPECT_EQ(sums.sum(5) - sums.sum(4), 64 * 128);
}

} // namespace
} // namespace annulus::test
