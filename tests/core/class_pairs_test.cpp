// SPDX-License-Identifier: Apache-2.0
// Class pairs against a loop over all queries and keys that follows the definition.
#include "core/class_pairs.hpp"

#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

using Positions = std::vector<std::int64_t>;

Positions positions_in(const Segment &segment, const Progression &rows, const Window &window) {
    Positions positions;
    for_each_position(segment, rows, window, [&](std::int64_t position) {
        positions.push_back(position);
        return true;
    });
    std::sort(positions.begin(), positions.end());
    return positions;
}

Positions part_of(const Positions &positions, const Window &window) {
    Positions part;
    for (const std::int64_t position : positions)
        if (position >= window.start && position < window.end())
            part.push_back(position);
    return part;
}

// One problem of many. It is printed if it fails. Problems from number 150 on have windows and global positions.
class RandomPairs : public testing::TestWithParam<int> {
  protected:
    RandomPairs()
        : problem_(GetParam() < 150 ? random_problem(static_cast<std::uint64_t>(GetParam()))
                                    : random_sliding_problem(static_cast<std::uint64_t>(GetParam()))),
          mask_(problem_), plan_(pattern_of(problem_), plan_problem_of(problem_)),
          generator_(static_cast<std::mt19937_64::result_type>(GetParam())) {}

    // Returns the keys of a query in a branch by the definition. The plan of global positions may have a part of them.
    Mask::Keys keys_of(const BranchPlan &branch, std::int64_t query, std::int32_t head) const {
        Mask::Keys keys;
        mask_.add_keys(static_cast<std::size_t>(branch.index()), query, head, keys);
        if (branch.kind() == ANNULUS_BRANCH_GLOBAL)
            keys.positions =
                contains(branch.query_range(), query) ? part_of(keys.positions, branch.key_range()) : Positions{};
        return keys;
    }

    std::int64_t number(std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(generator_);
    }

    // Returns a random part of the sequence: often short, sometimes empty or all of it.
    Window window() {
        if (number(0, 9) == 0)
            return whole_;
        const std::int64_t start = number(0, problem_.length);
        const std::int64_t left = problem_.length - start;
        return {start, number(0, number(0, 1) ? left : std::min<std::int64_t>(left, 5))};
    }

    // Calls use(branch, its index).
    template <class Use> void for_each_branch(Use use) const {
        for (std::size_t i = 0; i < plan_.branches().size(); ++i)
            use(plan_.branches()[i], i);
    }

    const Problem problem_;
    const Mask mask_;
    const Plan plan_;
    const Window whole_{0, problem_.length};
    std::mt19937_64 generator_;
    testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << problem_};
};

TEST_P(RandomPairs, OfQueriesHaveTheirKeys) {
    for_each_branch([&](const BranchPlan &branch, std::size_t) {
        for (std::int32_t h = 0; h < problem_.heads; ++h)
            for (std::int64_t n = 0; n < problem_.length; ++n) {
                const Mask::Keys wanted = keys_of(branch, n, h);
                const ClassPair pair = pair_of_query(branch, h, n);
                const Window some = window();
                for (const Window &keys : {whole_, some}) {
                    const Window seen = seen_keys(branch, n, keys);
                    ASSERT_EQ(positions_in(pair.segment, pair.keys, seen), part_of(wanted.positions, keys));
                    ASSERT_EQ(has_keys(branch, h, n, keys), !part_of(wanted.positions, keys).empty());
                }
                ASSERT_EQ(pair.padding_keys, wanted.padding);
                const Positions queries = positions_in(pair.segment, pair.queries, whole_);
                ASSERT_EQ(std::count(queries.begin(), queries.end(), n), queries.empty() ? 0 : 1);
            }
    });
}

TEST_P(RandomPairs, AreTheQueriesThatAttendToAKey) {
    const auto &branches = plan_.branches();
    for (std::int32_t h = 0; h < problem_.heads; ++h)
        for (std::int64_t n = 0; n < problem_.length; ++n) {
            std::set<std::int64_t> earlier_keys; // keys of the branches before the current one
            for_each_branch([&](const BranchPlan &branch, std::size_t i) {
                const Positions keys = keys_of(branch, n, h).positions;
                const std::set<std::int64_t> wanted(keys.begin(), keys.end());
                for (std::int64_t m = 0; m < (problem_.causal ? n + 1 : problem_.length); ++m) {
                    ASSERT_EQ(attends(branch, h, n, m), wanted.contains(m)) << "query " << n << ", key " << m;
                    ASSERT_EQ(attends(branches.data(), static_cast<std::int32_t>(i), h, n, m),
                              earlier_keys.contains(m));
                }
                earlier_keys.insert(keys.begin(), keys.end());
            });
        }
}

TEST_P(RandomPairs, AreInNoSegmentThatDoesNotMeetThem) {
    for_each_branch([&](const BranchPlan &branch, std::size_t) {
        const Window a = window(), b = window();
        if (a.length == 0 || b.length == 0)
            return;
        bool met = false;
        for (std::int64_t n = a.start; n < a.end(); ++n)
            for (std::int64_t m = b.start; m < b.end(); ++m)
                met = met || branch.segment_of(n) == branch.segment_of(m);
        ASSERT_EQ(segment_meets(branch, a, b), met);
        bool attends_to_any = false;
        for (std::int64_t n = a.start; n < a.end(); ++n)
            for (std::int64_t m = b.start; m < b.end(); ++m)
                for (std::int32_t h = 0; h < problem_.heads; ++h)
                    attends_to_any = attends_to_any || attends(branch, h, n, m);
        ASSERT_TRUE(may_attend(branch, a, b) || !attends_to_any);
    });
}

TEST_P(RandomPairs, OfKeysHaveTheirQueries) {
    for_each_branch([&](const BranchPlan &branch, std::size_t) {
        // wanted[head][key]: the queries of each key.
        std::vector<std::vector<Positions>> wanted(problem_.heads, std::vector<Positions>(problem_.length));
        for (std::int32_t h = 0; h < problem_.heads; ++h)
            for (std::int64_t n = 0; n < problem_.length; ++n)
                for (const std::int64_t m : keys_of(branch, n, h).positions)
                    wanted[h][m].push_back(n);
        for (std::int64_t m = 0; m < problem_.length; ++m) {
            const Segment segment = branch.segment_at(m);
            const Window queries = window();
            for (std::int32_t first = 0; first < problem_.heads; ++first) {
                std::set<std::int64_t> wanted_queries;
                for (std::int32_t last = first + 1; last <= problem_.heads; ++last) {
                    wanted_queries.insert(wanted[last - 1][m].begin(), wanted[last - 1][m].end());
                    const Progression rows = pair_of_key(branch, segment, first, last, m).queries;
                    ASSERT_EQ(positions_in(segment, rows, seeing_queries(branch, m, queries)),
                              part_of({wanted_queries.begin(), wanted_queries.end()}, queries));
                }
            }
        }
    });
}

TEST_P(RandomPairs, OfAHeadAreAllThatItHasInWindows) {
    for (int round = 0; round < 4; ++round)
        for_each_branch([&](const BranchPlan &branch, std::size_t i) {
            const Window queries = window(), keys = window();
            SCOPED_TRACE(testing::Message() << "branch " << i << ", queries " << queries.start << " + "
                                            << queries.length << ", keys " << keys.start << " + " << keys.length);
            for (std::int32_t h = 0; h < problem_.heads; ++h) {
                std::map<std::int64_t, std::pair<Positions, std::int64_t>> visited; // keys and padding of a query
                for (std::int64_t index = 0; index < branch.segment_count(); ++index) {
                    const Segment segment = branch.segment(index);
                    for_each_class_pair(branch, h, segment, queries, keys, [&](const ClassPair &pair) {
                        ASSERT_EQ(pair.segment.range, segment.range);
                        for (const std::int64_t n : positions_in(segment, pair.queries, queries)) {
                            const Window seen = seen_keys(branch, n, keys);
                            const std::pair seen_keys_and_padding(positions_in(segment, pair.keys, seen),
                                                                  pair.padding_keys);
                            ASSERT_TRUE(visited.emplace(n, seen_keys_and_padding).second) << n << " is visited twice";
                        }
                    });
                }
                for (std::int64_t n = queries.start; n < queries.end(); ++n) {
                    const Mask::Keys wanted = keys_of(branch, n, h);
                    const auto &[positions, padding] = visited[n];
                    ASSERT_EQ(positions, part_of(wanted.positions, keys)) << "query " << n << " of head " << h;
                    ASSERT_EQ(padding, wanted.padding) << "query " << n << " of head " << h;
                    visited.erase(n);
                }
                ASSERT_TRUE(visited.empty());
            }
        });
}

TEST_P(RandomPairs, OfAnyBranchHaveKeysInAWindow) {
    for (std::int32_t h = 0; h < problem_.heads; ++h)
        for (std::int64_t n = 0; n < problem_.length; ++n) {
            const Window keys = window();
            ASSERT_EQ(has_keys(plan_, h, n, keys), !part_of(mask_.keys(n, h).positions, keys).empty());
        }
}

TEST_P(RandomPairs, KnowTheirRowsInAWindow) {
    for_each_branch([&](const BranchPlan &branch, std::size_t) {
        if (branch.kind() == ANNULUS_BRANCH_GLOBAL)
            return; // its one class is no residue class
        const auto i = static_cast<std::size_t>(branch.index());
        for (int round = 0; round < 20; ++round) {
            const Window rows = window();
            const Segment segment = branch.segment(number(0, branch.segment_count() - 1));
            const std::int64_t residue = number(0, branch.dilation() - 1);
            const ClassPair pair = class_pair(branch, segment, residue);
            Positions class_positions, all;
            for (std::int64_t n = segment.range.start; n < segment.range.end(); ++n) {
                all.push_back(n);
                if (branch.dilation() == 1 || mask_.place(i, n) % branch.dilation() == residue)
                    class_positions.push_back(n);
            }
            const bool every = problem_.branches[i].query == ANNULUS_QUERY_EVERY;
            ASSERT_EQ(has_row_in(segment, pair.keys, rows), !part_of(class_positions, rows).empty());
            ASSERT_EQ(has_row_in(segment, pair.queries, rows), !part_of(every ? all : class_positions, rows).empty());
        }
    });
}

TEST_P(RandomPairs, OfPlacesInARowAreTheirResidues) {
    for_each_branch([&](const BranchPlan &branch, std::size_t) {
        if (branch.kind() == ANNULUS_BRANCH_GLOBAL)
            return; // its one class is no residue class
        const Segment segment = branch.segment(0);
        const std::int64_t r = branch.dilation();
        const std::int64_t place = number(0, segment.range.length - 1), count = number(1, segment.range.length - place);
        const ResidueRange range = residues_of_queries(branch, place, count);
        for (std::int64_t residue = 0; residue < r; ++residue) {
            const Progression queries = class_pair(branch, segment, residue).queries;
            ASSERT_EQ((residue - range.first + r) % r<range.count, clip(queries, place, place + count).count> 0)
                << "residue " << residue << " of places " << place << " + " << count;
        }
    });
}

INSTANTIATE_TEST_SUITE_P(ClassPairs, RandomPairs, testing::Range(0, 250));

// Sizes at the limit of 64 bits do not overflow.
TEST(LargePairs, OfTheLargestSegmentsAndDilations) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    Problem problem;
    problem.length = 100;
    for (const auto rule : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY}) {
        problem.branches = {{.segment = most, .dilation = most, .query = rule}};
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const BranchPlan &branch = plan.branches()[0];
        for (std::int64_t n = 0; n < problem.length; ++n) {
            const bool takes_part = n == 0 || rule != ANNULUS_QUERY_DILATED;
            const std::int64_t key = rule == ANNULUS_QUERY_RESIDUE ? n : 0;
            ASSERT_EQ(has_keys(branch, 0, n, {key, most - key}), takes_part);
            ASSERT_FALSE(has_keys(branch, 0, n, {key + 1, most - key - 1}));
        }
        EXPECT_EQ(class_pair(branch, branch.segment(0), most - 1).keys.count, 0);
    }
}

} // namespace
} // namespace annulus::test
