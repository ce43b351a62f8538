// SPDX-License-Identifier: Apache-2.0
// Results of several ranks: what they must not depend on. Contexts with a communicator: what else they can do, and how
// much memory they use.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr annulus_exchange exchanges[] = {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER};
const std::vector<annulus_dtype> dtypes =
    dtypes_of_part({ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16});

RankOptions options_of(const std::vector<std::int64_t> &lengths, annulus_exchange exchange, int threads = 1) {
    RankOptions options;
    options.lengths = lengths;
    options.run.exchange = exchange;
    options.run.threads = threads;
    return options;
}

std::int64_t start_of(const std::vector<std::int64_t> &lengths, int rank) {
    return std::accumulate(lengths.begin(), lengths.begin() + rank, std::int64_t{0});
}

class EveryDtype : public testing::TestWithParam<annulus_dtype> {
  protected:
    const std::vector<std::int64_t> lengths_ = {70, 0, 130, 131}; // of mixed_problem()

    Problem problem(bool causal) const {
        Problem problem = mixed_problem(GetParam());
        problem.causal = causal;
        return problem;
    }
};

// All keys of a query are on another rank and have the score -infinity: a finite product of Q and K that the scale
// brings out of the range. Such a query has keys, so its results are NaN.
TEST_P(EveryDtype, KeysThatCountForNothingElsewhere) {
    Problem whole{.length = 40,
                  .heads = 1,
                  .branches = {{.dilation = 64, .query = ANNULUS_QUERY_EVERY}}, // all attend to position 0
                  .scale = 1e36,
                  .dtype = GetParam()};
    Inputs inputs = random_inputs(whole, 1);
    std::ranges::fill(inputs.q, 100);
    std::fill_n(inputs.k.begin(), whole.dim, whole.dtype == ANNULUS_FLOAT64 ? -1e290 : -100);
    RankOptions options = options_of({15, 25}, ANNULUS_EXCHANGE_RING);
    options.run.backward = false;
    for (const Results &results : {run(whole, inputs, options.run), run_ranks(whole, inputs, options)})
        for (const std::vector<double> &values : {results.out, results.lse})
            EXPECT_TRUE(std::ranges::all_of(values, [](double x) { return std::isnan(x); }));
}

// The bits do not depend on the run or the number of threads.
TEST_P(EveryDtype, BitsAreTheSameEveryTime) {
    for (const bool causal : {false, true}) {
        const Problem whole = problem(causal);
        ASSERT_EQ(whole.length, 331);
        const Inputs inputs = random_inputs(whole, 1);
        for (const annulus_exchange exchange : exchanges) {
            const Results first = run_ranks(whole, inputs, options_of(lengths_, exchange));
            for (const int threads : {1, 2, 5}) {
                SCOPED_TRACE(testing::Message() << "exchange " << exchange << ", threads " << threads);
                expect_identical(run_ranks(whole, inputs, options_of(lengths_, exchange, threads)), first);
            }
        }
    }
}

// The results are the same if no rank has d_lse, if all have zeros in it, and if only some ranks have it.
TEST_P(EveryDtype, SomeRanksHaveNoGradientOfLse) {
    const Problem whole = problem(false);
    Inputs inputs = random_inputs(whole, 2);
    std::fill(inputs.d_lse.begin(), inputs.d_lse.end(), 0);
    Inputs without = inputs;
    without.d_lse.clear();
    for (const annulus_exchange exchange : exchanges) {
        const RankOptions options = options_of(lengths_, exchange);
        const std::vector<Comm> comms = make_local_comms(options.ranks());
        const Results wanted = run_ranks(whole, inputs, options, comms);
        expect_identical(run_ranks(whole, without, options, comms), wanted);
        for_each_rank(options.ranks(), [&](int rank) {
            const Results part = run_rank(whole, rank % 2 ? inputs : without, options, rank, comms[rank].get());
            expect_identical(part, shard_results(whole, wanted, start_of(lengths_, rank), lengths_[rank]));
        });
    }
}

TEST_P(EveryDtype, SomeRanksDoNotAskForLse) {
    const Problem whole = problem(true);
    const Inputs inputs = random_inputs(whole, 3);
    for (const annulus_exchange exchange : exchanges) {
        const RankOptions options = options_of(lengths_, exchange);
        const std::vector<Comm> comms = make_local_comms(options.ranks());
        const Results wanted = run_ranks(whole, inputs, options, comms);
        for_each_rank(options.ranks(), [&](int rank) {
            const std::int64_t start = start_of(lengths_, rank);
            const Context context = make_rank_context(whole, options, rank, comms[rank].get());
            Call call(shard_problem(whole, lengths_[rank]), shard_inputs(whole, inputs, start, lengths_[rank]),
                      host_memory());
            const Call::Arguments &a = call.arguments;
            check(annulus_forward(context.get(), &a.q, &a.k, &a.v, &a.out, rank % 2 ? &a.lse : nullptr, nullptr));
            const Results results = call.results(ANNULUS_PASS_FORWARD);
            const Results rank_results = shard_results(whole, wanted, start, lengths_[rank]);
            expect_identical("out", results.out, rank_results.out);
            if (rank % 2)
                expect_identical("lse", results.lse, rank_results.lse);
        });
    }
}

std::string name_of(const testing::TestParamInfo<annulus_dtype> &info) {
    return annulus_dtype_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryDtype, testing::ValuesIn(dtypes), name_of);

// ---- NaN and infinity in a row of a shard.

using Rows = std::set<std::pair<std::int64_t, std::int32_t>>; // (position, head)

class Nonfinite : public testing::TestWithParam<std::tuple<annulus_exchange, bool, double>> {
  protected:
    const double value_ = std::get<2>(GetParam());
    // Shards inside segments, segments inside shards, and neither.
    const Problem problem_ = {
        .length = 120,
        .heads = 4,
        .kv_heads = 2,
        .branches = {{.segment = 50},
                     {.segment = 100, .dilation = 3, .query = ANNULUS_QUERY_EVERY},
                     {.dilation = 5, .query = ANNULUS_QUERY_RESIDUE, .order = ANNULUS_ORDER_HILBERT},
                     window_spec(19, 11, 2),
                     global_spec(33, 2)},
        .causal = std::get<1>(GetParam()),
        .dtype = ANNULUS_FLOAT32};
    const RankOptions options_ = options_of({30, 33, 0, 57}, std::get<0>(GetParam()));
    const Mask mask_{problem_};
    const Inputs inputs_ = random_inputs(problem_, 1);
    const Results clean_ = run_ranks(problem_, inputs_, options_);

    static constexpr std::int32_t kv_head = 1;

    Rows queries_of(std::int64_t key) const {
        Rows rows;
        for (std::int64_t n = 0; n < problem_.length; ++n)
            for (std::int32_t head = 0; head < problem_.heads; ++head)
                if (problem_.kv_head(head) == kv_head) {
                    const std::vector<std::int64_t> keys = mask_.keys(n, head).positions;
                    if (std::find(keys.begin(), keys.end(), key) != keys.end())
                        rows.emplace(n, head);
                }
        return rows;
    }
    Rows keys_of(const Rows &queries) const {
        Rows rows;
        for (const auto &[n, head] : queries)
            for (const std::int64_t m : mask_.keys(n, head).positions)
                rows.emplace(m, kv_head);
        return rows;
    }

    // Checks that rows of [length, heads, dim] outside `reached` are as in the clean run. If the value is NaN, every
    // row inside is NaN.
    void expect_reached(const char *name, const std::vector<double> &got, const std::vector<double> &clean,
                        std::int32_t heads, const Rows &reached) const {
        for (std::size_t i = 0; i < got.size(); ++i) {
            const auto row = static_cast<std::int64_t>(i) / problem_.dim;
            const std::pair<std::int64_t, std::int32_t> place(row / heads, static_cast<std::int32_t>(row % heads));
            if (!reached.contains(place))
                ASSERT_NEAR(got[i], clean[i], 2e-6 * (1 + std::fabs(clean[i])))
                    << name << " of position " << place.first << ", head " << place.second;
            else
                ASSERT_TRUE(!std::isnan(value_) || std::isnan(got[i]))
                    << name << " of position " << place.first << ", head " << place.second;
        }
    }

    void expect_only_where_attended(std::vector<double> Inputs::*tensor) const {
        for (const std::int64_t position : {0, 29, 30, 45, 62, 63, 100, 119}) {
            SCOPED_TRACE(testing::Message() << "position " << position);
            Inputs inputs = inputs_;
            std::vector<double> &values = inputs.*tensor;
            const auto first = values.begin() + (position * problem_.kv() + kv_head) * problem_.dim;
            std::fill(first, first + problem_.dim, value_);
            const Results results = run_ranks(problem_, inputs, options_);
            const Rows queries = queries_of(position), keys = keys_of(queries);
            expect_reached("out", results.out, clean_.out, problem_.heads, queries);
            expect_reached("d_q", results.d_q, clean_.d_q, problem_.heads, queries);
            expect_reached("d_k", results.d_k, clean_.d_k, problem_.kv(), keys);
            if (tensor == &Inputs::k)
                expect_reached("d_v", results.d_v, clean_.d_v, problem_.kv(), keys);
            else
                expect_reached("d_v", results.d_v, clean_.d_v, problem_.kv(), {});
        }
    }
};

TEST_P(Nonfinite, KeyRowReachesItsQueries) {
    expect_only_where_attended(&Inputs::k);
}

TEST_P(Nonfinite, ValueRowReachesItsQueries) {
    expect_only_where_attended(&Inputs::v);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Nonfinite,
                         testing::Combine(testing::ValuesIn(exchanges), testing::Bool(),
                                          testing::Values(std::numeric_limits<double>::quiet_NaN(),
                                                          std::numeric_limits<double>::infinity(),
                                                          -std::numeric_limits<double>::infinity())));

// ---- Contexts and communicators.

TEST(Contexts, ComputeAloneAgain) {
    const Problem whole = mixed_problem(ANNULUS_FLOAT32);
    const Inputs inputs = random_inputs(whole, 1);
    const RankOptions options = options_of(even_lengths(whole.length, 3), ANNULUS_EXCHANGE_RING);
    const Results alone = run(whole, inputs, options.run);
    const std::vector<Comm> comms = make_local_comms(3);
    for_each_rank(3, [&](int rank) {
        const Context context = make_rank_context(whole, options, rank, comms[rank].get());
        for (int turn = 0; turn < 2; ++turn) {
            const std::int64_t start = start_of(options.lengths, rank);
            const std::int64_t length = options.lengths[rank];
            run_on(context.get(), sizes_of(whole), shard_problem(whole, length),
                   shard_inputs(whole, inputs, start, length), options.run);
            annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
            check(annulus_context_last_traffic(context.get(), &traffic));
            EXPECT_GT(traffic.sent_bytes + traffic.received_bytes, 0U);

            check(annulus_context_set_comm(context.get(), nullptr));
            expect_identical(run_on(context.get(), sizes_of(whole), whole, inputs, options.run), alone);
            check(annulus_context_last_traffic(context.get(), &traffic));
            EXPECT_EQ(traffic.sent_bytes, 0U);
            EXPECT_EQ(traffic.received_bytes, 0U);

            check(annulus_context_set_comm(context.get(), comms[rank].get()));
            const annulus_shards shards = options.shards();
            check(annulus_context_set_shards(context.get(), &shards));
        }
    });
}

// Each rank has several contexts, which call in turn. Their problems, configs and shards differ.
TEST(Contexts, ShareACommunicatorInOrder) {
    const int ranks = 3;
    const Problem problems[] = {mixed_problem(ANNULUS_FLOAT32),
                                mixed_problem(ANNULUS_FLOAT64),
                                {.length = 50, .branches = {{.dilation = 3}}, .dtype = ANNULUS_BFLOAT16}};
    std::vector<Inputs> inputs;
    std::vector<Results> exact;
    for (const Problem &problem : problems) {
        inputs.push_back(random_inputs(problem, 1));
        exact.push_back(run_exact(problem, inputs.back()));
    }
    const std::vector<Comm> comms = make_local_comms(ranks);
    // [context][rank]
    std::vector<std::vector<Context>> contexts(std::size(problems));
    for (std::size_t i = 0; i < std::size(problems); ++i)
        for (int rank = 0; rank < ranks; ++rank)
            contexts[i].push_back(
                make_rank_context(problems[i], options_of(even_lengths(problems[i].length, ranks), exchanges[i % 2]),
                                  rank, comms[rank].get()));
    for_each_rank(ranks, [&](int rank) {
        for (const std::size_t i : {0, 1, 2, 1, 0, 0, 2}) {
            const Problem &problem = problems[i];
            // The shards differ in each call.
            const std::vector<std::int64_t> lengths = random_lengths(problem.length, ranks, i);
            annulus_context *const context = contexts[i][rank].get();
            const annulus_shards shards = view_of(lengths);
            check(annulus_context_set_shards(context, &shards));
            const std::int64_t start = start_of(lengths, rank);
            RunOptions options;
            options.engine = ANNULUS_ENGINE_AUTO;
            const Results results = run_on(context, sizes_of(problem), shard_problem(problem, lengths[rank]),
                                           shard_inputs(problem, inputs[i], start, lengths[rank]), options);
            const Results wanted = shard_results(problem, exact[i], start, lengths[rank]);
            if (problem.dtype != ANNULUS_BFLOAT16)
                expect_near(results, wanted, tolerance_of(problem.dtype));
        }
    });
}

TEST(Contexts, ComeAndGo) {
    const Problem whole = {.length = 40, .branches = {{}, {.dilation = 3}}, .dtype = ANNULUS_FLOAT32};
    const Inputs inputs = random_inputs(whole, 1);
    const Results wanted = run(whole, inputs);
    for (int cycle = 0; cycle < 20; ++cycle)
        expect_near(run_ranks(whole, inputs, options_of(even_lengths(40, 4), exchanges[cycle % 2])), wanted,
                    tolerance_of(whole.dtype));
    // Communicators that are never used.
    for (int cycle = 0; cycle < 20; ++cycle)
        make_local_comms(4);
}

// ---- Memory.

TEST(Workspace, IsWhatACallNeedsToTheByte) {
    const Problem whole = mixed_problem(ANNULUS_FLOAT32);
    const Inputs inputs = random_inputs(whole, 1);
    const std::vector<std::int64_t> lengths = even_lengths(whole.length, 3);
    for (const annulus_exchange exchange : exchanges)
        for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
            const RankOptions options = options_of(lengths, exchange);
            const std::vector<Comm> comms = make_local_comms(3);
            for_each_rank(3, [&](int rank) {
                const std::int64_t start = start_of(lengths, rank);
                const annulus_problem sizes = sizes_of(whole);
                const Context context = make_rank_context(whole, options, rank, comms[rank].get());
                std::uint64_t bytes = 0;
                check(annulus_workspace_size(context.get(), &sizes, pass, &bytes));
                annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
                const annulus_shards shards = view_of(lengths);
                check(annulus_estimate_rank(context.get(), &sizes, pass, &shards, rank, &estimate));
                EXPECT_EQ(bytes, estimate.workspace_bytes);
                // On rank 1 the workspace has one byte too few. Its address is the one that alignment wastes most on.
                std::vector<unsigned char> memory(bytes + 256);
                unsigned char *odd = memory.data();
                while (reinterpret_cast<std::uintptr_t>(odd) % 256 != 1)
                    ++odd;
                check(annulus_context_set_workspace(context.get(), odd, bytes - (rank == 1)));
                const Call call(shard_problem(whole, lengths[rank]), shard_inputs(whole, inputs, start, lengths[rank]),
                                host_memory());
                const annulus_status status =
                    pass == ANNULUS_PASS_FORWARD ? call.forward(context.get()) : call.backward(context.get());
                EXPECT_EQ(status, rank == 1 ? ANNULUS_ERROR_WORKSPACE : ANNULUS_ERROR_DECLINED) << annulus_last_error();
                EXPECT_EQ(annulus_last_error_bytes(), rank == 1 ? bytes : 0);
                check(annulus_context_set_workspace(context.get(), odd, bytes));
                check(pass == ANNULUS_PASS_FORWARD ? call.forward(context.get()) : call.backward(context.get()));
            });
        }
}

// A LongNet with a million tokens. With twice the ranks the memory for tensors and workspace halves in a ring, except
// for what a step of the engine takes; an eighth more is allowed. In a gather it shrinks less, since the queries still
// attend to the same rows.
TEST(Workspace, ShrinksWithTheNumberOfRanks) {
    Problem whole;
    whole.length = 1 << 20;
    whole.heads = 8;
    whole.dim = 64;
    whole.dtype = ANNULUS_FLOAT32;
    whole.branches.clear();
    for (int i = 0; i < 6; ++i)
        whole.branches.push_back({.segment = std::int64_t{2048} << (2 * i), .dilation = std::int64_t{1} << (2 * i)});
    const annulus_problem sizes = sizes_of(whole);
    for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_AUTO, ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
        const Config config = make_config(whole, ANNULUS_ENGINE_CPU);
        check(annulus_config_set_exchange(config.get(), exchange));
        const Context context = make_context(config.get(), 1);
        for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
            double before = 0;
            for (int ranks = 2; ranks <= 32; ranks *= 2) {
                annulus_shards shards = ANNULUS_SHARDS_INIT;
                shards.ranks = ranks;
                std::uint64_t most = 0;
                for (int rank = 0; rank < ranks; ++rank) {
                    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
                    check(annulus_estimate_rank(context.get(), &sizes, pass, &shards, rank, &estimate));
                    most = std::max(most, estimate.tensor_bytes + estimate.workspace_bytes);
                }
                const auto now = static_cast<double>(most);
                if (ranks > 2) {
                    EXPECT_LT(now, before * (exchange == ANNULUS_EXCHANGE_RING ? 0.5625 : 0.9))
                        << ranks << " ranks, exchange " << exchange << ", pass " << pass;
                }
                before = now;
            }
        }
    }
}

// Bytes of a tensor in the workspace.
std::uint64_t booked(std::int64_t elements, int element_bytes) {
    return static_cast<std::uint64_t>((elements * element_bytes + 255) / 256 * 256);
}

// On the second of two ranks under causality, which sends nothing. `summed` is the number of rows of each head that
// have keys on the first rank.
struct SummedCase {
    std::vector<BranchSpec> branches;
    std::vector<std::int64_t> lengths;
    std::int64_t summed;
};

// Float32 sums are there only of rows with keys on other ranks. Beside them a rank has what an engine takes alone, and
// the rows that arrive. No case has rows that are unpacked, which would need more.
TEST(Workspace, HasSumsOfFewRows) {
    const std::vector<BranchSpec> longnet = {{.segment = 64}, {.segment = 256, .dilation = 4}, {.dilation = 16}};
    const std::vector<SummedCase> table = {
        {longnet, {2048, 2048}, 2048 / 16},
        {{{.segment = 1000}}, {1500, 2017}, 500},
        {{{.segment = 1000}}, {2000, 1517}, 0},
        {{{}}, {501, 700}, 700},
        {{{.kind = ANNULUS_BRANCH_WINDOW, .left = 33}}, {501, 700}, 33},
    };
    const std::int64_t heads = 4, dim = 24;
    for (const SummedCase &row : table)
        for (const annulus_dtype dtype : dtypes)
            for (const annulus_exchange exchange : exchanges) {
                Problem whole{.length = row.lengths[0] + row.lengths[1],
                              .heads = static_cast<std::int32_t>(heads),
                              .dim = static_cast<std::int32_t>(dim),
                              .branches = row.branches,
                              .causal = true,
                              .dtype = dtype};
                SCOPED_TRACE(testing::Message() << whole << " lengths " << testing::PrintToString(row.lengths));
                const annulus_problem sizes = sizes_of(whole);
                const Config config = make_config(whole, ANNULUS_ENGINE_CPU);
                check(annulus_config_set_exchange(config.get(), exchange));
                const Context context = make_context(config.get(), 1);
                const annulus_shards shards = view_of(row.lengths);
                const auto estimate_of = [&](annulus_pass pass, bool is_rank) {
                    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
                    check(is_rank
                              ? annulus_estimate_rank(context.get(), &sizes, pass, &shards, 1, &estimate)
                              : annulus_estimate_problem(context.get(), &sizes, pass, ANNULUS_ALL_BRANCHES, &estimate));
                    return estimate;
                };
                const int sum_bytes = dtype == ANNULUS_FLOAT64 ? 8 : 4;
                const bool holds_sums = dtype == ANNULUS_FLOAT32 || dtype == ANNULUS_FLOAT64; // in gradients
                const annulus_estimate forward = estimate_of(ANNULUS_PASS_FORWARD, true);
                const annulus_estimate forward_alone = estimate_of(ANNULUS_PASS_FORWARD, false);
                ASSERT_EQ(forward.sent_bytes, 0u);
                const auto arriving = static_cast<std::int64_t>(forward.received_bytes);
                EXPECT_EQ(forward.workspace_bytes - forward_alone.workspace_bytes,
                          booked(2 * heads * row.summed, sum_bytes) + booked(heads * row.summed * dim, sum_bytes) +
                              booked(arriving, 1));

                const annulus_estimate backward = estimate_of(ANNULUS_PASS_BACKWARD, true);
                const annulus_estimate backward_alone = estimate_of(ANNULUS_PASS_BACKWARD, false);
                const auto gradients = [&](std::int64_t rows) {
                    return holds_sums ? 0 : 3 * booked(heads * rows * dim, sum_bytes);
                };
                EXPECT_EQ(backward.workspace_bytes - gradients(row.lengths[1]),
                          backward_alone.workspace_bytes - gradients(whole.length) + booked(arriving, 1) +
                              booked(static_cast<std::int64_t>(backward.sent_bytes), 1));
            }
}

} // namespace
} // namespace annulus::test
