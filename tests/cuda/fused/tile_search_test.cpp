// SPDX-License-Identifier: Apache-2.0
// Tests which pairs the tiles of the fused kernels visit. A warp on the host finds the tiles.
// - Each (query, key) pair of the definition is visited as often as the key rule says. The grid may be whole or cut
//   anywhere.
// - A tile visits no block outside the band of its window, nor does a row block.
// - The partial results that the last of several grids adds were left by the other grids.
// - The first step of several leaves partial results for the rows to which another step or rank adds.
// - A launch clears exactly the rows that its row blocks do not have.
#include "cuda/fused/plan/branch_split.hpp"
#include "cuda/fused/plan/range_parts.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/fused/schedule/find_tile.cuh" // with host_warp/ for its warp-wide functions
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/fused/sm90/kernels.hpp"

#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

// Batch entry, counted on over range parts, head and position.
using Row = std::tuple<int, int, int>;

template <bool rows_are_keys, int range_block_rows, int row_blocks> class Search {
  public:
    // For each row of the row blocks: the rows of the other side that it meets, and the padding keys.
    std::map<Row, std::vector<std::int64_t>> met;
    std::map<Row, double> padding;
    std::set<Row> reaching;   // rows of row blocks of which some row meets others
    bool checks_band = false; // no block outside the band of a window is visited

    // Adds the pairs that a grid visits. Returns the rows of its row blocks.
    std::set<Row> visit(const TileGrid &pass) {
        alignas(TileSearch) std::byte memory[sizeof(TileSearch)] = {}; // as in shared memory, nothing constructs it
        TileSearch &search = *reinterpret_cast<TileSearch *>(memory);
        Tile<row_blocks> tile{}, by_one_code{};
        std::set<Row> rows;
        HostWarp::run([&] {
            const int lane = HostWarp::current()->lane();
            search.start(lane);
            for (unsigned id = 0; id < pass.tiles; ++id) {
                const bool is_found = find_tile<rows_are_keys, range_block_rows, true>(pass, search, id, tile);
                if (is_found && lane == 0)
                    visit(pass, tile, rows);
                __syncwarp();
                if (id % 16 != 0)
                    continue;
                const bool is_found_by_one_code =
                    find_tile_of_branches<rows_are_keys, range_block_rows, annulus::Sequences::either>(pass, search, id,
                                                                                                       by_one_code);
                if (lane == 0) {
                    EXPECT_EQ(is_found_by_one_code, is_found) << "tile " << id;
                    if (is_found && is_found_by_one_code)
                        expect_same(by_one_code, tile);
                }
                __syncwarp();
            }
        });
        return rows;
    }

  private:
    // The kernels of `mma` find tiles by one code path for all grids.
    static void expect_same(const Tile<row_blocks> &found, const Tile<row_blocks> &wanted) {
        EXPECT_EQ(found.batch, wanted.batch);
        EXPECT_EQ(found.partial_batch, wanted.partial_batch);
        EXPECT_EQ(found.head, wanted.head);
        ASSERT_EQ(found.ranges, wanted.ranges);
        for (int u = 0; u < row_blocks; ++u) {
            const RowBlock &own = found.row_block[u], &other = wanted.row_block[u];
            ASSERT_EQ(own.rows, other.rows);
            if (own.rows == 0)
                continue;
            EXPECT_EQ(std::tuple(own.first, own.padding_keys), std::tuple(other.first, other.padding_keys));
            EXPECT_EQ(own.position(own.rows - 1), other.position(own.rows - 1));
            for (int r = 0; r < found.ranges; ++r) {
                const Range<row_blocks> &range = found.range[r], &same = wanted.range[r];
                EXPECT_EQ(
                    std::tuple(range.first, range.stride, range.count, range.blocks, range.map, range.hides_first),
                    std::tuple(same.first, same.stride, same.count, same.blocks, same.map, same.hides_first));
                const SeenBlocks &part = range.part[u], &same_part = same.part[u];
                EXPECT_EQ(std::tuple(part.blocks, part.full_blocks),
                          std::tuple(same_part.blocks, same_part.full_blocks));
                if (part.blocks > 0) {
                    EXPECT_TRUE(std::ranges::equal(part.multiplicities, same_part.multiplicities));
                }
            }
        }
    }

    void visit(const TileGrid &pass, const Tile<row_blocks> &tile, std::set<Row> &rows) {
        for (int u = 0; u < row_blocks; ++u)
            for (int i = 0; i < tile.row_block[u].rows; ++i) {
                const Row row{tile.batch, tile.head, tile.row_block[u].position(i)};
                EXPECT_TRUE(rows.insert({tile.partial_batch, tile.head, std::get<2>(row)}).second)
                    << "a row of two row blocks: " << std::get<2>(row);
                if (tile.meets_any(u))
                    reaching.insert(row);
                padding[row] += tile.row_block[u].padding_keys;
                for (int r = 0; r < tile.ranges; ++r)
                    visit(pass, tile.range[r], u, std::get<2>(row), met[row]);
            }
        if (checks_band && pass.branch_count == 1 && pass.has_windows)
            for (int r = 0; r < tile.ranges; ++r)
                expect_in_band(tile, tile.range[r]);
    }

    // Expects a row block to see a row of each block that it visits, and a row block to visit each block of a range.
    static void expect_in_band(const Tile<row_blocks> &tile, const Range<row_blocks> &range) {
        for (int at = 0; at < range.blocks; ++at) {
            bool is_visited = false;
            for (int u = 0; u < row_blocks; ++u) {
                if (!range.part[u].meets(range.hides_first, at))
                    continue;
                is_visited = true;
                int seen = 0;
                for (int i = 0; i < tile.row_block[u].rows; ++i) {
                    const int position = tile.row_block[u].position(i),
                              from = range.hides_first ? range.template hidden<rows_are_keys>(position) : 0,
                              to = range.template visible<rows_are_keys>(position);
                    seen +=
                        std::max(0, std::min(to, (at + 1) * range_block_rows) - std::max(from, at * range_block_rows));
                }
                EXPECT_GT(seen, 0) << "block " << at << " for row block " << u;
            }
            EXPECT_TRUE(is_visited) << "block " << at;
        }
    }

    // Visits a range as consumers do: blocks from the last to the first, the first `full_blocks` of them without a mask
    // or, if the range hides its first rows, not at all.
    static void visit(const TileGrid &pass, const Range<row_blocks> &range, int u, int position,
                      std::vector<std::int64_t> &met) {
        const int visible = pass.is_bounded() ? range.template visible<rows_are_keys>(position) : range.count;
        const int hidden = range.hides_first ? range.template hidden<rows_are_keys>(position) : 0;
        EXPECT_LE(range.part[u].blocks, range.blocks);
        const int full = range.part[u].full_blocks;
        EXPECT_TRUE(rows_are_keys || range_block_rows <= row_block_rows || range.hides_first || full == 0 ||
                    full == range.part[u].blocks || full * range_block_rows < visible)
            << "a query meets no key before the blocks without a mask";
        EXPECT_TRUE(!range.hides_first || range.part[u].full_blocks * range_block_rows <= hidden ||
                    range.part[u].blocks == 0);
        for (int at = range.part[u].blocks - 1; at >= 0; --at)
            for (int column = 0; column < range_block_rows; ++column) {
                const int index =
                    rows_are_keys ? range.count - (at + 1) * range_block_rows + column : at * range_block_rows + column;
                const int from_start =
                    rows_are_keys ? range.count - 1 - index : index; // counted from the end at which block 0 is
                if (!range.part[u].meets(range.hides_first, at) || from_start < hidden ||
                    (at >= range.part[u].full_blocks && from_start >= visible))
                    continue;
                EXPECT_LT(from_start, visible);
                const int pair = range.part[u].multiplicities[column % multiplicity_period / 2];
                for (int count = column % 2 ? pair / 16 : pair % 16; count > 0; --count)
                    met.push_back(range.first + std::int64_t{index} * range.stride);
            }
    }
};

// Makes a random problem from a seed.
using RandomProblem = Problem (*)(std::uint64_t);

// Random problems as they are, or with `keys_once` random problems whose keys count once in one grid.
class Tiles : public testing::TestWithParam<std::tuple<int, bool, RandomProblem>> {
  protected:
    Tiles() {
        const auto [number, keys_once, make] = GetParam();
        const auto seed = static_cast<std::uint64_t>(number);
        problem_ = make(seed);
        problem_.dtype = ANNULUS_BFLOAT16;
        problem_.keys_once = keys_once;
        // A tile has 16 ranges at most, and a window can have four of them if keys count once.
        const std::size_t most_branches = has_windows() ? 4 : 5;
        if (problem_.keys_once) // several branches, which overlap in many ways
            for (std::uint64_t i = 1; i <= 2; ++i)
                for (const BranchSpec &branch : make(1000 * i + seed).branches)
                    if (problem_.branches.size() < most_branches)
                        problem_.branches.push_back(branch);
        if (problem_.keys_once)
            keep_one_global_branch();
        const annulus_query_rule rule = has_windows()
                                            ? std::array{ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE}[seed % 2]
                                            : problem_.branches.front().query;
        const std::int64_t base = 2 + number % 2;
        for (BranchSpec &branch : problem_.branches) {
            branch.order = ANNULUS_ORDER_LINEAR;
            branch.width = 0;
            if (!problem_.keys_once || branch.kind == ANNULUS_BRANCH_GLOBAL)
                continue;
            branch.query = rule;
            branch.dilation = std::array{std::int64_t{1}, base, base * base, 4 * base * base}[branch.dilation % 4];
            if (branch.first_head + branch.head_count > problem_.heads)
                branch.first_head = branch.head_count = 0;
        }
    }

    bool has_windows() const { return std::get<2>(GetParam()) != random_problem; }

    bool has_global_positions() const {
        return std::ranges::count(problem_.branches, ANNULUS_BRANCH_GLOBAL, &BranchSpec::kind) > 0;
    }

    // If keys count once, global positions must be one branch with all heads, beside segments without padding.
    void keep_one_global_branch() {
        const auto is_global = [](const BranchSpec &branch) { return branch.kind == ANNULUS_BRANCH_GLOBAL; };
        const auto global = std::ranges::find_if(problem_.branches, is_global);
        if (global == problem_.branches.end())
            return;
        BranchSpec kept = *global;
        kept.first_head = kept.head_count = 0;
        std::erase_if(problem_.branches, is_global);
        problem_.branches.push_back(kept);
        problem_.zero_keys = false;
        problem_.head_shard = {};
    }

    // Returns for each query the keys of the definition, or for each key the queries that attend to it.
    std::map<Row, std::vector<std::int64_t>> wanted(bool rows_are_keys) const {
        const Mask mask(problem_);
        std::map<Row, std::vector<std::int64_t>> all;
        for (int b = 0; b < problem_.batch; ++b)
            for (int h = 0; h < problem_.heads; ++h)
                for (std::int64_t i = 0; i < problem_.query_length(); ++i) {
                    const std::int64_t query = problem_.query_start() + i;
                    for (const std::int64_t key : mask.keys(query, h).positions)
                        all[{b, h, static_cast<int>(rows_are_keys ? key : query)}].push_back(rows_are_keys ? query
                                                                                                           : key);
                }
        return all;
    }

    template <class Found> static void expect_same(Found found, Found wanted) {
        for (Found *rows : {&found, &wanted})
            for (auto row = rows->begin(); row != rows->end();) {
                std::sort(row->second.begin(), row->second.end());
                row = row->second.empty() ? rows->erase(row) : std::next(row);
            }
        EXPECT_TRUE(found == wanted);
    }

    // Visits all tiles, for every head of Q that shares a head of K.
    template <class Search> void visit(Search &search, TileGrid pass, std::set<Row> *rows = nullptr) const {
        pass.by_length = problem_.length % 2 == 1 && pass.sequence_count == 0;
        for (int member = 0; member < pass.head_step; ++member, ++pass.first_head)
            for (const Row &row : search.visit(pass))
                if (rows)
                    rows->insert(row);
    }

    // Expects a launch to clear exactly the rows of a window that its row blocks do not have.
    void expect_others_cleared(const TileGrid &pass, const Window &window, const std::set<Row> &rows) const {
        for (int b = 0; b < problem_.batch; ++b)
            for (int h = 0; h < problem_.heads; ++h)
                for (auto first = static_cast<int>(window.start); first < window.end();
                     first += RowsToClear::piece_rows) {
                    std::uint32_t expected = 0;
                    for (int i = 0; i < RowsToClear::piece_rows; ++i)
                        expected |= std::uint32_t{rows.contains({b, h, first + i})} << i;
                    EXPECT_EQ(rows_in_row_blocks(pass, h, first), expected) << "from " << first << " of head " << h;
                }
    }

    // Divides the ranges of each grid, and expects every part to have each row of the grid.
    template <bool rows_are_keys, int range_block_rows, int row_blocks>
    void check_range_parts(const std::vector<PlannedGrid> &passes) const {
        Search<rows_are_keys, range_block_rows, row_blocks> search;
        for (const PlannedGrid &planned : passes) {
            if (planned.tiles.sequence.row_count == 0)
                continue;
            std::set<Row> rows, expected;
            Search<rows_are_keys, range_block_rows, row_blocks> whole;
            visit(whole, planned.tiles, &expected);
            PlannedGrid cut = planned;
            const Window positions{planned.tiles.sequence.range_start, planned.tiles.sequence.range_count};
            cut_ranges(positions, positions.length / 3 + 1, cut);
            cut.tiles.sequences = cut.sequences.data();
            cut.tiles.sequence_grids = cut.sequence_grids.data();
            visit(search, cut.tiles, &rows);
            EXPECT_EQ(rows.size(), cut.sequence_grids.size() * expected.size());
            for (const auto &[batch, head, position] : rows) {
                EXPECT_TRUE(expected.contains({batch % planned.tiles.batches, head, position}));
            }
        }
        expect_same(search.met, wanted(rows_are_keys));
    }

    template <bool rows_are_keys, int range_block_rows, int row_blocks> void check(GridResult what) const {
        SCOPED_TRACE(testing::Message() << problem_ << " " << static_cast<int>(what) << " of " << row_blocks);
        const Plan plan(pattern_of(problem_), plan_problem_of(problem_));
        const KernelShape shape{row_blocks, range_block_rows};
        const std::vector<PlannedGrid> passes = make_grids(plan, what, shape);
        ASSERT_EQ(grids_refusal(plan, passes), nullptr);
        Search<rows_are_keys, range_block_rows, row_blocks> search;
        search.checks_band = std::get<2>(GetParam()) == random_window_problem;
        for (const PlannedGrid &planned : passes) {
            std::set<Row> rows;
            if (planned.tiles.sequence.row_count > 0)
                visit(search, planned.tiles, &rows);
            expect_others_cleared(planned.tiles, rows_are_keys ? plan.problem().keys : plan.problem().queries, rows);
        }
        expect_same(search.met, wanted(rows_are_keys));
        if (std::get<0>(GetParam()) % 4 == 0 && !problem_.zero_keys)
            check_range_parts<rows_are_keys, range_block_rows, row_blocks>(passes);
        if (what == GridResult::outputs && problem_.zero_keys && !problem_.causal) {
            const Mask mask(problem_);
            for (const auto &[row, padding] : search.padding)
                EXPECT_EQ(padding, mask.keys(std::get<2>(row), std::get<1>(row)).padding);
        }
        const auto expect_split = [&](const std::optional<std::vector<PlannedGrid>> &cut) {
            if (!cut)
                return;
            const TileGrid &last = cut->back().tiles;
            // All rows at once, then a part of the rows of all heads at a time.
            const Window &all = rows_are_keys ? plan.problem().keys : plan.problem().queries;
            for (const std::int64_t count : {all.length, all.length / 3 + 1}) {
                Search<rows_are_keys, range_block_rows, row_blocks> both;
                std::set<Row> summed, rows;
                for (std::int64_t start = all.start; start < all.end(); start += count) {
                    GridPart part{0, last.batches, 0, last.heads.value};
                    part.rows = intersect(all, {start, count});
                    for (const PlannedGrid &planned : *cut) {
                        TileGrid tiles = planned.tiles;
                        restrict_grid(planned, part, tiles);
                        visit(both, tiles, &planned == &cut->back() ? &rows : &summed);
                    }
                }
                expect_same(both.met, wanted(rows_are_keys));
                std::set<Row> taken;
                for (const Row &row : rows)
                    if (last.rows_with_partial.has(std::get<1>(row), std::get<2>(row)))
                        taken.insert(row);
                EXPECT_TRUE(taken == summed) << taken.size() << " of " << summed.size();
            }
        };
        expect_split(as_split(passes, what));
        if (passes.size() != 1 || !passes.front().is_complete || passes.front().tiles.has_residue_classes)
            return;
        const int branches = passes.front().tiles.branch_count;
        for (int count = 1; count < branches; ++count) {
            SCOPED_TRACE(testing::Message() << "cut after " << count);
            expect_split(split_after(count, passes.front(), plan, what, shape));
        }
    }

    // True if a branch serves the head, and the position is among the queries, or keys, of that head.
    bool takes_part(const Mask &mask, std::size_t branch, bool rows_are_keys, std::int64_t position, int head) const {
        const BranchSpec &spec = problem_.branches[branch];
        const bool has_all =
            spec.query == ANNULUS_QUERY_RESIDUE || (spec.query == ANNULUS_QUERY_EVERY && !rows_are_keys);
        return mask.serves(branch, head) &&
               (has_all || mask.place(branch, position) % spec.dilation == mask.phase(branch, head));
    }

    // Checks a step over the own keys of a rank whose shard is `shard`. A row has a partial result if and only if one
    // of its segments leaves the shard, or one of its sliding windows leaves it or is near its border. So all rows of
    // the row blocks of a step over other keys have one.
    template <bool rows_are_keys, int range_block_rows, int row_blocks>
    void check_first_step(GridResult what, const Window &shard) const {
        SCOPED_TRACE(testing::Message() << problem_ << " " << static_cast<int>(what) << " from " << shard.start
                                        << ", so many: " << shard.length);
        annulus::Problem local = plan_problem_of(problem_);
        local.queries = local.keys = shard;
        const Plan plan(pattern_of(problem_), local);
        const std::vector<PlannedGrid> passes = make_grids(plan, what, {row_blocks, range_block_rows});
        if (passes.size() != 1) // several grids finish no rows
            return;
        TileGrid pass = passes.front().tiles;
        const int dilation = largest_dilation(passes);
        pass.rows_left_partial = rows_with_more_ranges(pass, what, dilation);
        Search<rows_are_keys, range_block_rows, row_blocks> search;
        std::set<Row> rows;
        visit(search, pass, &rows);
        const auto all = wanted(rows_are_keys);
        const Mask mask(problem_);
        for (int h = 0; h < problem_.heads; ++h)
            for (int i = static_cast<int>(shard.start); i < shard.end(); ++i) {
                const bool has_sum = pass.rows_left_partial.has(h, i);
                bool leaves_shard = false;
                for (std::size_t b = 0; b < problem_.branches.size(); ++b) {
                    const Mask::Segment segment = mask.segment_of(b, i);
                    bool before = segment.start < shard.start && !(problem_.causal && rows_are_keys);
                    bool after = segment.start + segment.length > shard.end() && !(problem_.causal && !rows_are_keys);
                    if (const BranchSpec &spec = problem_.branches[b]; spec.kind == ANNULUS_BRANCH_WINDOW) {
                        const auto reach = [&](std::int64_t steps) {
                            return steps < 0 ? problem_.length : steps * spec.dilation + std::int64_t{64} * dilation;
                        };
                        const std::int64_t right = problem_.causal ? 0 : spec.right;
                        before &= i - reach(rows_are_keys ? right : spec.left) < shard.start;
                        after &= i + reach(rows_are_keys ? spec.left : right) >= shard.end();
                    }
                    leaves_shard |= (before || after) && takes_part(mask, b, rows_are_keys, i, h);
                }
                EXPECT_EQ(has_sum, leaves_shard) << i << " of head " << h;
                if (has_sum) {
                    EXPECT_TRUE(rows.contains({0, h, i})) << "its sum is never set: " << i << " of head " << h;
                }
                const auto met = all.find({0, h, i});
                const auto is_foreign = [&](std::int64_t other) { return other < shard.start || other >= shard.end(); };
                if (met != all.end() && std::ranges::any_of(met->second, is_foreign)) {
                    EXPECT_TRUE(has_sum) << i << " of head " << h;
                }
            }
        for (const Window &elsewhere : {Window{0, shard.start}, Window{shard.end(), problem_.length - shard.end()}}) {
            (rows_are_keys ? local.queries : local.keys) = elsewhere;
            const Plan other(pattern_of(problem_), local);
            Search<rows_are_keys, range_block_rows, row_blocks> search_elsewhere;
            for (const PlannedGrid &planned : make_grids(other, what, {row_blocks, range_block_rows}))
                if (planned.tiles.sequence.row_count > 0)
                    visit(search_elsewhere, planned.tiles);
            for (const auto &[batch, head, position] : search_elsewhere.reaching) {
                EXPECT_TRUE(pass.rows_left_partial.has(head, position)) << position << " of head " << head;
            }
        }
    }

    // Checks a step in which the queries of a rank attend to keys of another rank.
    template <bool rows_are_keys, int range_block_rows, int row_blocks>
    void check_received(GridResult what, const Window &queries, const Window &keys) const {
        SCOPED_TRACE(testing::Message() << problem_ << " " << static_cast<int>(what) << " queries from "
                                        << queries.start << " keys from " << keys.start);
        annulus::Problem sizes = plan_problem_of(problem_);
        sizes.queries = queries;
        sizes.keys = keys;
        const Plan plan(pattern_of(problem_), sizes);
        const std::vector<PlannedGrid> passes = make_grids(plan, what, {row_blocks, range_block_rows});
        ASSERT_EQ(grids_refusal(plan, passes), nullptr);
        Search<rows_are_keys, range_block_rows, row_blocks> search;
        for (const PlannedGrid &planned : passes)
            if (planned.tiles.sequence.row_count > 0)
                visit(search, planned.tiles);
        const auto is_inside = [](const Window &window, std::int64_t position) {
            return position >= window.start && position < window.end();
        };
        auto pairs = wanted(rows_are_keys);
        const Window &rows = rows_are_keys ? keys : queries, &others = rows_are_keys ? queries : keys;
        for (auto &[row, met] : pairs)
            std::erase_if(met, [&, position = std::get<2>(row)](std::int64_t other) {
                return !is_inside(rows, position) || !is_inside(others, other);
            });
        expect_same(search.met, pairs);
    }

    // Checks several sequences in the rows, some of equal lengths, with gaps between them. Each pair of each sequence
    // is visited once, and no other pair.
    template <bool rows_are_keys, int range_block_rows, int row_blocks> void check_sequences(GridResult what) const {
        SCOPED_TRACE(testing::Message() << problem_ << " " << static_cast<int>(what) << " of " << row_blocks);
        CallProblem call{plan_problem_of(problem_), {}};
        std::map<Row, std::vector<std::int64_t>> all;
        std::map<Row, double> padding;
        int start = 0;
        for (const std::int64_t length : {problem_.length, problem_.length / 3 + 1, std::int64_t{1}, std::int64_t{0},
                                          problem_.length / 3 + 1, problem_.length / 2 + 1}) {
            start += static_cast<int>(length % 3);
            call.sequences.push_back({0, problem_.batch, {start, length}});
            Problem own = problem_;
            own.length = length;
            const Mask mask(own);
            for (int b = 0; b < problem_.batch; ++b)
                for (int h = 0; h < problem_.heads; ++h)
                    for (int query = 0; query < length; ++query) {
                        const Mask::Keys keys = mask.keys(query, h);
                        padding[{b, h, start + query}] = static_cast<double>(keys.padding);
                        for (const std::int64_t key : keys.positions) {
                            const int row = start + (rows_are_keys ? static_cast<int>(key) : query);
                            all[{b, h, row}].push_back(start + (rows_are_keys ? query : key));
                        }
                    }
            start += static_cast<int>(length);
        }
        call.rows.sequence_length = start;
        call.rows.queries = call.rows.keys = {0, start};
        const SequencePlans plans(pattern_of(problem_), call);
        const KernelShape shape{row_blocks, range_block_rows};
        std::vector<PlannedGrid> passes = make_grids(plan_of_longest(plans), what, shape);
        lay_out_sequences(plans, what, shape, passes);
        ASSERT_EQ(grids_refusal(plan_of_rows(plans), passes), nullptr);
        Search<rows_are_keys, range_block_rows, row_blocks> search;
        for (PlannedGrid &planned : passes) {
            planned.tiles.sequences = planned.sequences.data();
            planned.tiles.sequence_grids = planned.sequence_grids.data();
            visit(search, planned.tiles);
        }
        expect_same(search.met, all);
        if (what == GridResult::outputs && problem_.zero_keys && !problem_.causal)
            for (const auto &[row, keys] : search.padding) {
                EXPECT_EQ(keys, padding.at(row));
            }
    }

    Problem problem_;
};

TEST_P(Tiles, OfSeveralSequencesVisitEachPairOnce) {
    if (has_global_positions())
        GTEST_SKIP() << "sequences with global positions are computed one by one";
    problem_.window.reset();
    check_sequences<false, 128, 3>(GridResult::outputs);
    check_sequences<false, 64, 3>(GridResult::query_gradients);
    check_sequences<true, 128, 2>(GridResult::key_gradients);
}

TEST_P(Tiles, OfAFirstStepHaveSumsWhereOthersAddToThem) {
    if (has_global_positions())
        GTEST_SKIP() << "beside global positions no row is finished";
    problem_.kv_heads = problem_.heads;
    problem_.batch = 1;
    problem_.window.reset();
    const std::int64_t third = problem_.length / 3;
    for (const Window &shard : {Window{0, third + 1}, Window{third, third + 1}, Window{problem_.length - 1, 1}}) {
        check_first_step<false, 128, 3>(GridResult::outputs, shard);
        check_first_step<false, 64, 3>(GridResult::query_gradients, shard);
        check_first_step<true, 128, 2>(GridResult::key_gradients, shard);
    }
}

TEST_P(Tiles, OfReceivedKeysVisitEachPairOnce) {
    if (!has_windows())
        GTEST_SKIP() << "all pairs of a segment are tested as a whole call";
    problem_.window.reset();
    problem_.causal = problem_.zero_keys = false; // the keys are before the queries or after them
    const std::int64_t border = problem_.length / 3, after = problem_.length - border;
    for (const auto &[queries, keys] : {std::pair(Window{0, border}, Window{border, after}),
                                        {Window{border, after}, Window{0, border}},
                                        {Window{border, 1}, Window{border + 1, after - 1}}}) {
        if (queries.length == 0 || keys.length == 0)
            continue;
        check_received<false, 128, 3>(GridResult::outputs, queries, keys);
        check_received<false, 32, 2>(GridResult::query_gradients, queries, keys);
        check_received<true, 64, 3>(GridResult::key_gradients, queries, keys);
    }
}

TEST_P(Tiles, VisitEachPairOnce) {
    check<false, 128, 3>(GridResult::outputs);
    check<false, 64, 3>(GridResult::query_gradients);
    check<false, 32, 2>(GridResult::query_gradients);
    check<true, 128, 2>(GridResult::key_gradients);
    check<true, 64, 3>(GridResult::key_gradients);
}

INSTANTIATE_TEST_SUITE_P(Fused, Tiles,
                         testing::Combine(testing::Range(0, 200), testing::Values(false),
                                          testing::Values(random_problem)));
INSTANTIATE_TEST_SUITE_P(KeysOnce, Tiles,
                         testing::Combine(testing::Range(0, 60), testing::Values(true),
                                          testing::Values(random_problem)));
INSTANTIATE_TEST_SUITE_P(Windows, Tiles,
                         testing::Combine(testing::Range(0, 100), testing::Bool(),
                                          testing::Values(random_window_problem)));
INSTANTIATE_TEST_SUITE_P(Global, Tiles,
                         testing::Combine(testing::Range(0, 100), testing::Bool(),
                                          testing::Values(random_sliding_problem)));

} // namespace
} // namespace annulus::test
