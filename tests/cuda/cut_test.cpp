// SPDX-License-Identifier: Apache-2.0
// How the gemm engine cuts a problem, as pure data and without a GPU: the tiles of all blocks visit each (query, key)
// pair of the definition once, and tiles that run side by side share no row.
#include "cuda/gemm_layout.hpp"
#include "cuda/tiles.hpp"

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

// By batch entry, head and position.
using Row = std::tuple<std::int64_t, std::int32_t, std::int64_t>;
struct Visited {
    std::vector<std::int64_t> keys;
    std::int64_t padding = 0;
};

class RandomTiles : public testing::TestWithParam<int> {
  protected:
    RandomTiles() : problem_(random_problem(static_cast<std::uint64_t>(GetParam()))), random_(GetParam()) {}

    std::int64_t draw(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
    }

    // Adds what the tiles of a block visit; checks each set by itself.
    void visit(const Block &block, std::int64_t tile_size) {
        for (const BranchPlan &branch : plan_.branches()) {
            keys_of_branch_.clear();
            for (const TileSet &set : make_tiles(plan_, branch, block, tile_size)) {
                ASSERT_LE(set.queries, tile_size);
                ASSERT_LE(set.keys, tile_size);
                ASSERT_GT(set.count(), 0);
                visit(block, set);
                if (HasFatalFailure())
                    return;
            }
        }
    }

    void visit(const Block &block, const TileSet &set) {
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
                    ASSERT_TRUE(set.absent_rows);
                    continue;
                }
                keys.push_back(key);
                ASSERT_TRUE(keys_of_set.insert({tile.batch, tile.head, key}).second);
                const bool first = keys_of_branch_.insert({tile.batch, tile.head, key}).second;
                ASSERT_TRUE(first || !set.covers_keys);
            }
            for (std::int64_t q = 0; q < set.queries; ++q) {
                const std::int64_t query = segment.position(tile.query + q * set.query_stride);
                if (!inside(query, block.queries)) {
                    ASSERT_TRUE(set.absent_rows);
                    continue;
                }
                ASSERT_TRUE(queries_of_set.insert({tile.batch, tile.head, query}).second);
                Visited &visited = visited_[{tile.batch, tile.head, query}];
                visited.padding += set.padding_keys;
                for (const std::int64_t key : keys) {
                    const bool hidden = plan_.causal() && key > query;
                    ASSERT_TRUE(set.masked || !hidden);
                    if (!hidden)
                        visited.keys.push_back(key);
                }
            }
        }
    }

    static bool inside(std::int64_t position, const Window &window) {
        return position >= window.start && position < window.end();
    }

    // Each query has seen the keys that the definition gives it; padding keys are counted where they are wanted.
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

    const Problem problem_;
    std::mt19937_64 random_;
    testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << problem_};
    const Mask mask_{problem_};
    const Plan plan_{pattern_of(problem_), plan_problem_of(problem_)};
    std::map<Row, Visited> visited_;
    std::set<Row> keys_of_branch_;
};

// Blocks of queries against blocks of keys: the most general cut.
TEST_P(RandomTiles, VisitEachPairOnce) {
    const std::int64_t tile = draw(1, 24);
    const std::int64_t rows = draw(1, problem_.length), columns = draw(1, problem_.length);
    const auto heads = static_cast<std::int32_t>(draw(1, problem_.heads));
    const Window whole{0, problem_.length};
    for (std::int32_t h = 0; h < problem_.heads; h += heads)
        for (std::int64_t q = 0; q < problem_.length; q += rows)
            for (std::int64_t k = 0; k < problem_.length; k += columns) {
                visit({0, problem_.batch, h, std::min(heads, problem_.heads - h),
                       intersect({q, rows}, plan_.problem().queries), intersect({k, columns}, whole)},
                      tile);
                if (HasFatalFailure())
                    return;
            }
    expect_complete(columns == problem_.length); // padding keys come once for each block of keys
}

// The blocks that the engine runs, under limits from none to plenty.
TEST_P(RandomTiles, BlocksOfALayoutVisitEachPairOnce) {
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD})
        for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{3} << 20, std::uint64_t{256} << 20}) {
            const GemmLayout layout = make_layout(plan_, pass, limit, 2, false);
            const std::int32_t group = pass == ANNULUS_PASS_FORWARD ? 1 : problem_.heads / problem_.kv();
            int query_results = 0, key_results = 0;
            for (const BlockGrid &grid : layout.grids) {
                visited_.clear();
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
                    visit(block, layout.tile);
                    if (HasFatalFailure())
                        return;
                }
                expect_complete(pass == ANNULUS_PASS_FORWARD); // padding keys have no gradients
            }
            EXPECT_EQ(query_results, 1);
            EXPECT_EQ(key_results, pass == ANNULUS_PASS_BACKWARD ? 1 : 0);
        }
}

INSTANTIATE_TEST_SUITE_P(Many, RandomTiles, testing::Range(0, 400));

} // namespace
} // namespace annulus::test
