// SPDX-License-Identifier: Apache-2.0
// How the gemm engine cuts a problem, without a GPU. The tiles of all blocks visit each (query, key) pair of the
// definition once, and tiles that may run at the same time share no row.
#include "core/class_pairs.hpp"
#include "cuda/gemm/call.hpp"
#include "cuda/gemm/layout.hpp"
#include "cuda/gemm/tiles.hpp"
#include "ranks/shard_plan.hpp"

#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

// (batch entry, head, position).
using Row = std::tuple<std::int64_t, std::int32_t, std::int64_t>;
struct Visited {
    std::vector<std::int64_t> keys;
    std::int64_t padding = 0;
};

// The pairs that the tiles of blocks visit.
class Visits {
  public:
    explicit Visits(const Problem &problem) : problem_(problem) {}

    const Plan &plan() const { return plan_; }
    void clear() { visited_.clear(); }

    // Adds the pairs that the tiles of a block visit. Checks each set on its own.
    void visit(const Block &block, std::int64_t tile_size) {
        for (const BranchPlan &branch : plan_.branches()) {
            keys_of_branch_.clear();
            queries_of_branch_.clear();
            std::vector<TileSet> sets;
            make_tiles(plan_, branch, block, tile_size, sets);
            for (const TileSet &set : sets) {
                ASSERT_LE(set.queries, tile_size);
                ASSERT_LE(set.keys, tile_size);
                ASSERT_GT(set.count(), 0);
                ASSERT_NO_FATAL_FAILURE(visit(branch, block, set));
            }
        }
    }

    // Expects that each query has met the keys that the definition gives it, and with `with_padding` its padding keys.
    void expect_complete(bool with_padding) {
        for (std::int64_t b = 0; b < problem_.batch; ++b)
            for (std::int32_t h = 0; h < problem_.heads; ++h)
                for (std::int64_t i = 0; i < problem_.query_length(); ++i) {
                    const std::int64_t query = problem_.query_start() + i;
                    Visited &visited = visited_[{b, h, query}];
                    Mask::Keys wanted = mask_.keys(query, h);
                    std::sort(visited.keys.begin(), visited.keys.end());
                    std::sort(wanted.positions.begin(), wanted.positions.end());
                    ASSERT_EQ(visited.keys, wanted.positions) << "head " << h << " query " << query;
                    if (with_padding) {
                        ASSERT_EQ(visited.padding, wanted.padding) << "head " << h << " query " << query;
                    }
                }
    }

  private:
    void visit(const BranchPlan &own, const Block &block, const TileSet &set) {
        std::set<Row> queries_of_set, keys_of_set;
        for (std::int64_t i = 0; i < set.count(); ++i) {
            const Tile tile = tile_at(set, i);
            ASSERT_GE(tile.head, block.first_head);
            ASSERT_LT(tile.head, block.first_head + block.heads);
            ASSERT_GE(tile.batch, block.first_batch);
            ASSERT_LT(tile.batch, block.first_batch + block.batches);
            const Segment segment{{tile.segment_start, set.curve.length()}, set.curve};
            std::vector<std::int64_t> keys;
            for (std::int64_t k = 0; k < set.keys; ++k) {
                const std::int64_t key = segment.position(tile.key + k * set.key_stride);
                if (!inside(key, block.keys)) {
                    ASSERT_TRUE(set.has_absent_rows);
                    continue;
                }
                keys.push_back(key);
                ASSERT_TRUE(keys_of_set.insert({tile.batch, tile.head, key}).second);
                const bool first = keys_of_branch_.insert({tile.batch, tile.head, key}).second;
                ASSERT_TRUE(first || !set.covers_keys);
            }
            for (const BranchPlan &branch : plan_.branches())
                if (!may_share_keys(branch, set)) {
                    ASSERT_NO_FATAL_FAILURE(expect_nothing_of(branch, set, tile, segment, keys));
                }
            for (std::int64_t q = 0; q < set.queries; ++q) {
                const std::int64_t query = segment.position(tile.query + q * set.query_stride);
                if (!inside(query, block.queries)) {
                    ASSERT_TRUE(set.has_absent_rows);
                    continue;
                }
                ASSERT_TRUE(queries_of_set.insert({tile.batch, tile.head, query}).second);
                const auto [place, is_new] =
                    queries_of_branch_.insert({{tile.batch, tile.head, query}, set.covers_queries});
                ASSERT_TRUE(is_new || (!place->second && !set.covers_queries)) << "query " << query;
                Visited &visited = visited_[{tile.batch, tile.head, query}];
                visited.padding += set.padding_keys;
                for (const std::int64_t key : keys) {
                    const bool hidden = !own.bounds().has(query, key);
                    ASSERT_TRUE(set.is_masked || !hidden);
                    if (!hidden)
                        visited.keys.push_back(key);
                }
            }
        }
    }

    // Expects that the branch gives no query of a tile one of these keys.
    static void expect_nothing_of(const BranchPlan &branch, const TileSet &set, const Tile &tile,
                                  const Segment &segment, const std::vector<std::int64_t> &keys) {
        for (std::int64_t q = 0; q < set.queries; ++q) {
            const std::int64_t query = segment.position(tile.query + q * set.query_stride);
            for (const std::int64_t key : keys)
                ASSERT_FALSE(attends(branch, tile.head, query, key)) << "query " << query << " key " << key;
        }
    }

    static bool inside(std::int64_t position, const Window &window) {
        return position >= window.start && position < window.end();
    }

    const Problem problem_;
    testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << problem_};
    const Mask mask_{problem_};
    const Plan plan_{pattern_of(problem_), plan_problem_of(problem_)};
    std::map<Row, Visited> visited_;
    std::set<Row> keys_of_branch_;
    std::map<Row, bool> queries_of_branch_; // true if a tile said that it has all keys of the query
};

// Returns a random problem, every second one with windows and global positions. Tiles visit a key for each branch that
// has it: it is hidden later if it counts once.
Problem problem_with_tiles(int seed) {
    Problem problem = seed % 2 ? random_sliding_problem(static_cast<std::uint64_t>(seed))
                               : random_problem(static_cast<std::uint64_t>(seed));
    problem.keys_once = false;
    return problem;
}

// True if some row first, first + stride, … of a tile has a position for which is(position) holds.
template <class Is>
bool has_row(const Segment &segment, std::int64_t first, std::int64_t stride, std::int32_t count, const Is &is) {
    for (std::int32_t row = 0; row < count; ++row)
        if (is(segment.position(first + row * stride)))
            return true;
    return false;
}

// Checks the tiles of the keys that ranks with shards of these lengths receive. A rank has received only the keys that
// its queries attend to. The other rows of its slots hold anything, NaN too, so no tile may read them.
void expect_received_keys_alone(Problem problem, const std::vector<std::int64_t> &lengths, std::int64_t tile_size) {
    problem.window.reset();
    SCOPED_TRACE(testing::Message() << problem << "shards " << testing::PrintToString(lengths) << " tile "
                                    << tile_size);
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), make_shards(lengths),
                             ANNULUS_EXCHANGE_GATHER);
    for (int rank = 0; rank < static_cast<int>(lengths.size()); ++rank) {
        Steps steps(call_planning_steps);
        const ShardPlan shard(layout, rank, steps);
        for (const std::vector<ReceivedKeys> &round : shard.received())
            for (const ReceivedKeys &received : round) {
                std::set<Row> rows;
                for (const Message *const message : received.messages)
                    for (std::int32_t kv_head = 0; kv_head < problem.kv(); ++kv_head)
                        for_each_row(received.plan, *message, kv_head, [&](std::int64_t m) {
                            rows.insert({0, kv_head, m});
                        });
                const auto &[queries, keys] = std::pair(received.plan.problem().queries, received.plan.problem().keys);
                std::vector<TileSet> sets;
                for (const BranchPlan &branch : received.plan.branches())
                    make_tiles(received.plan, branch, {0, 1, 0, problem.heads, queries, keys}, tile_size, sets);
                for (const TileSet &set : sets) {
                    ASSERT_TRUE(set.keys <= 1 || set.key_stride % received.stride == 0);
                    for (std::int64_t i = 0; i < set.count(); ++i) {
                        const Tile tile = tile_at(set, i);
                        const Segment segment{{tile.segment_start, set.curve.length()}, set.curve};
                        const bool has_queries = has_row(segment, tile.query, set.query_stride, set.queries,
                                                         [&](std::int64_t n) { return contains(queries, n); });
                        const bool reads_others =
                            has_row(segment, tile.key, set.key_stride, set.keys, [&](std::int64_t m) {
                                return contains(keys, m) && !rows.contains({0, problem.kv_head(tile.head), m});
                            });
                        ASSERT_FALSE(has_queries && reads_others) << "head " << tile.head << " keys from " << tile.key;
                    }
                }
            }
    }
}

class RandomTiles : public testing::TestWithParam<int> {
  protected:
    RandomTiles() : problem_(problem_with_tiles(GetParam())), random_(GetParam()) {}

    std::int64_t draw(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
    }

    const Problem problem_;
    std::mt19937_64 random_;
    Visits visits_{problem_};
    const Plan &plan_ = visits_.plan();
};

// Blocks of queries against blocks of keys: the most general division.
TEST_P(RandomTiles, VisitEachPairOnce) {
    const std::int64_t tile = draw(1, 24);
    const std::int64_t rows = draw(1, problem_.length), columns = draw(1, problem_.length);
    const auto heads = static_cast<std::int32_t>(draw(1, problem_.heads));
    const Window whole{0, problem_.length};
    for (std::int32_t h = 0; h < problem_.heads; h += heads)
        for (std::int64_t q = 0; q < problem_.length; q += rows)
            for (std::int64_t k = 0; k < problem_.length; k += columns) {
                const Block block{0,
                                  problem_.batch,
                                  h,
                                  std::min(heads, problem_.heads - h),
                                  intersect({q, rows}, plan_.problem().queries),
                                  intersect({k, columns}, whole)};
                ASSERT_NO_FATAL_FAILURE(visits_.visit(block, tile));
            }
    visits_.expect_complete(columns == problem_.length); // padding keys occur once in each block of keys
}

// The blocks that the engine runs, with limits from none to plenty.
TEST_P(RandomTiles, BlocksOfALayoutVisitEachPairOnce) {
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD})
        for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{3} << 20, std::uint64_t{256} << 20}) {
            const GemmLayout layout = make_layout(plan_, pass, limit, 2, Results::in_state);
            const std::int32_t group = pass == ANNULUS_PASS_FORWARD ? 1 : problem_.heads / problem_.kv();
            int query_results = 0, key_results = 0;
            for (const BlockGrid &grid : layout.grids) {
                visits_.clear();
                query_results += grid.query_results;
                key_results += grid.key_results;
                for (std::int64_t i = 0; i < grid.count(); ++i) {
                    const Block block = grid.block(plan_, i);
                    ASSERT_EQ(block.heads % group, 0);
                    if (grid.query_results) {
                        ASSERT_LE(block.batches * block.heads * block.queries.length, layout.query_rows);
                    }
                    if (grid.key_results) {
                        ASSERT_LE(block.batches * (block.heads / group) * block.keys.length, layout.key_rows);
                    }
                    ASSERT_NO_FATAL_FAILURE(visits_.visit(block, layout.tile));
                }
                visits_.expect_complete(pass == ANNULUS_PASS_FORWARD); // padding keys have no gradients
            }
            EXPECT_EQ(query_results, 1);
            EXPECT_EQ(key_results, pass == ANNULUS_PASS_BACKWARD ? 1 : 0);
        }
}

// A limit that the smallest layout fits into is respected.
TEST_P(RandomTiles, LimitsAreKept) {
    const auto bytes = [&](annulus_pass pass, std::uint64_t limit) {
        std::size_t most = 0;
        for (const Results results : {Results::in_state, Results::direct})
            most = std::max(most, booked_bytes(plan_, pass, layout_within(plan_, pass, limit, results)));
        return most;
    };
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
        const std::size_t least = bytes(pass, 1);
        for (int percent = 100; percent < 400; percent += 7) {
            const std::uint64_t limit = least * static_cast<std::size_t>(percent) / 100;
            EXPECT_LE(bytes(pass, limit), limit);
        }
    }
}

TEST_P(RandomTiles, ReadReceivedKeysAlone) {
    for (const Problem &problem : {problem_, random_sliding_problem(static_cast<std::uint64_t>(GetParam()))}) {
        const std::int64_t first = draw(0, problem.length), second = draw(0, problem.length - first);
        expect_received_keys_alone(problem, {first, second, problem.length - first - second}, draw(1, 64));
    }
}

INSTANTIATE_TEST_SUITE_P(Many, RandomTiles, testing::Range(0, 600));

// Tiles as large as the engine's, diagonals in slices, and a window that excludes some queries.
TEST(LargeTiles, VisitEachPairOnce) {
    constexpr auto every = ANNULUS_QUERY_EVERY, residue = ANNULUS_QUERY_RESIDUE;
    const std::vector<Problem> problems = {
        {.length = 3000,
         .heads = 1,
         .branches = {{.dilation = 2, .phase = ANNULUS_PHASE_FIXED, .query = every}},
         .causal = true,
         .window = QueryWindow{500, 2500}},
        {.length = 3100, .heads = 1, .branches = {{.segment = 2100}}, .causal = true, .window = QueryWindow{700, 2300}},
        {.length = 2900, .heads = 2, .branches = {{.segment = 1000, .dilation = 2}}, .causal = true},
        {.length = 2500, .heads = 1, .branches = {{.dilation = 3, .query = residue}}, .causal = true},
        {.length = 2300, .heads = 1, .branches = {{.segment = 2222, .dilation = 2, .query = every}}, .zero_keys = true},
        {.length = 2501, .heads = 1, .branches = {window_spec(300, 77)}},
        {.length = 2503, .heads = 1, .branches = {window_spec(40, 0)}, .window = QueryWindow{601, 1300}},
        {.length = 2309, .heads = 1, .branches = {window_spec(-1, 9, 2)}},
        {.length = 2309, .heads = 1, .branches = {window_spec(5, -1)}},
        {.length = 2309, .heads = 1, .branches = {window_spec(600, 600)}, .causal = true},
        {.length = 2311, .heads = 1, .branches = {global_spec(1203, 300, true)}, .causal = true},
        {.length = 2311, .heads = 1, .branches = {global_spec(3, 5, true), window_spec(128, 128)}},
    };
    for (const Problem &problem : problems)
        for (const std::int64_t tile : {256, 512, 2048}) {
            Visits visits(problem);
            const annulus::Problem &sizes = visits.plan().problem();
            visits.visit({0, 1, 0, problem.heads, sizes.queries, sizes.keys}, tile);
            visits.expect_complete(true);
        }
}

TEST(LargeTiles, ReadReceivedKeysAlone) {
    const auto of_head = [](std::int32_t head, BranchSpec branch) {
        branch.first_head = head;
        branch.head_count = 1;
        return branch;
    };
    const std::vector<Problem> problems = {
        {.length = 1501, .heads = 2, .branches = {of_head(0, window_spec(700, 500)), of_head(1, window_spec(90, 133))}},
        {.length = 1501,
         .heads = 2,
         .kv_heads = 1,
         .branches = {of_head(0, window_spec(7, 200, 3)), of_head(1, {.segment = 1500, .dilation = 7})}},
    };
    for (const Problem &problem : problems)
        for (const std::int64_t first : {31, 750, 1203})
            for (const std::int64_t tile : {256, 2048})
                expect_received_keys_alone(problem, {first, 1500 - first, 1}, tile);
}

// The tiles of a window compute little outside it, and a long sequence has no more sets than a short one.
TEST(Windows, HaveTilesNearTheDiagonalAlone) {
    const auto sets_of = [](std::int64_t length) {
        const Problem problem{.length = length, .heads = 1, .branches = {window_spec(255, 255)}};
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        std::vector<TileSet> sets;
        make_tiles(plan, plan.branches()[0], {0, 1, 0, 1, {0, length}, {0, length}}, 2048, sets);
        return sets;
    };
    const std::int64_t length = (1 << 20) + 3;
    const std::vector<TileSet> sets = sets_of(length);
    std::int64_t scores = 0;
    for (const TileSet &set : sets)
        scores += set.count() * set.queries * set.keys;
    EXPECT_LT(scores, 3 * 511 * length);
    EXPECT_LE(sets.size(), sets_of(8195).size());
}

// Short segments before a long one: they meet the tiles along its diagonal, and no other heads.
TEST(SharedKeys, AreInTilesThatASegmentMeets) {
    const Problem problem = {
        .length = 2048, .heads = 3, .branches = {{.segment = 128, .head_count = 2}, {.segment = 1024}}};
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    for (const bool served : {true, false}) {
        const Block block{0, 1, served ? 0 : 2, served ? 2 : 1, {0, 2048}, {0, 2048}};
        std::vector<TileSet> sets;
        make_tiles(plan, plan.branches()[1], block, 128, sets);
        std::int64_t tiles = 0, sharing = 0;
        for (const TileSet &set : sets) {
            tiles += set.count();
            sharing += may_share_keys(plan.branches()[0], set) ? set.count() : 0;
        }
        EXPECT_EQ(tiles, (served ? 2 : 1) * 2 * 8 * 8);
        EXPECT_EQ(sharing, served ? 2 * 2 * 8 : 0);
    }
}

} // namespace
} // namespace annulus::test
