// SPDX-License-Identifier: Apache-2.0
// Different ways to ask for the same result give the same result, on the cpu engine.
#include "support/compare.hpp"
#include "support/window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

namespace annulus::test {
namespace {

constexpr double tolerance = 1e-12;

void expect_equal(const Results &got, const Results &wanted) {
    expect_near(got, wanted, tolerance);
}

TEST(Equality, GroupedKvIsRepeatedHeads) {
    const Problem grouped = {.batch = 2,
                             .length = 100,
                             .heads = 6,
                             .kv_heads = 2,
                             .branches = {{.segment = 40}, {.dilation = 4}},
                             .causal = true};
    Problem repeated = grouped;
    repeated.kv_heads = 6;
    const Inputs inputs = random_inputs(grouped, 1);
    Inputs copies = inputs;
    copies.k.assign(repeated.kv_size(), 0);
    copies.v.assign(repeated.kv_size(), 0);
    const auto kv_index = [&](std::size_t element) { // for an element of repeated K or V, the element that it copies
        const std::size_t head = element / grouped.dim % repeated.kv_heads;
        const std::size_t position = element / grouped.dim / repeated.kv_heads;
        return (position * grouped.kv_heads + head / 3) * grouped.dim + element % grouped.dim;
    };
    for (std::size_t i = 0; i < copies.k.size(); ++i) {
        copies.k[i] = inputs.k[kv_index(i)];
        copies.v[i] = inputs.v[kv_index(i)];
    }
    Results wanted = run(repeated, copies);
    std::vector<double> d_k(grouped.kv_size()), d_v(grouped.kv_size());
    for (std::size_t i = 0; i < wanted.d_k.size(); ++i) {
        d_k[kv_index(i)] += wanted.d_k[i];
        d_v[kv_index(i)] += wanted.d_v[i];
    }
    wanted.d_k = d_k;
    wanted.d_v = d_v;
    expect_equal(run(grouped, inputs), wanted);
}

// Each process gets for its share of the heads what one call has for all heads. Two shards cut rows of heads that share
// a residue, and one branch serves no head of the last shard.
TEST(Equality, HeadShardsHaveTheResultsOfAllHeads) {
    Problem all = {.length = 131,
                   .heads = 12,
                   .kv_heads = 6,
                   .branches = {{.segment = 8},
                                {.segment = 64, .dilation = 5},
                                {.dilation = 7, .phase = ANNULUS_PHASE_INTERLEAVE},
                                {.segment = 32, .dilation = 3, .first_head = 1, .head_count = 7},
                                {.segment = 16, .dilation = 4, .query = ANNULUS_QUERY_EVERY, .first_head = 5}}};
    const Inputs inputs = random_inputs(all, 5);
    for (const auto engine : {ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU}) {
        const Results all_results = run(all, inputs, {.engine = engine});
        Problem shard = all;
        shard.heads = 4;
        shard.kv_heads = 2;
        for (shard.head_shard = {0, 12}; shard.head_shard.first < 12; shard.head_shard.first += 4) {
            const auto slice = [&](const std::vector<double> &rows, std::int32_t heads, std::int32_t shard_heads) {
                const std::int64_t begin = std::int64_t{shard.head_shard.first} * heads / all.heads * all.dim;
                std::vector<double> part;
                for (std::int64_t n = 0; n < all.length; ++n) {
                    const auto first = rows.begin() + n * heads * all.dim + begin;
                    part.insert(part.end(), first, first + std::int64_t{shard_heads} * all.dim);
                }
                return part;
            };
            const auto slice_q = [&](const std::vector<double> &rows) { return slice(rows, 12, 4); };
            const auto slice_k = [&](const std::vector<double> &rows) { return slice(rows, 6, 2); };
            const auto slice_lse = [&](const std::vector<double> &rows) {
                const auto first = rows.begin() + shard.head_shard.first * all.length;
                return std::vector<double>(first, first + 4 * all.length);
            };
            Inputs own = inputs;
            own.q = slice_q(inputs.q);
            own.k = slice_k(inputs.k);
            own.v = slice_k(inputs.v);
            own.d_out = slice_q(inputs.d_out);
            own.d_lse = slice_lse(inputs.d_lse);
            Results wanted;
            wanted.out = slice_q(all_results.out);
            wanted.lse = slice_lse(all_results.lse);
            wanted.d_q = slice_q(all_results.d_q);
            wanted.d_k = slice_k(all_results.d_k);
            wanted.d_v = slice_k(all_results.d_v);
            expect_equal(run(shard, own, {.engine = engine}), wanted);
        }
    }
}

TEST(Equality, HeadShardMustHaveTheCallsHeads) {
    Problem problem = {.heads = 4, .head_shard = {5, 8}};
    const Inputs inputs = random_inputs(problem, 5);
    try {
        run(problem, inputs);
        ADD_FAILURE() << "heads 5 to 8 of 8 were accepted";
    } catch (const std::runtime_error &error) {
        EXPECT_STREQ(error.what(),
                     "argument: the call has 4 query heads, from head 5 on by the config's head shard; it "
                     "must end within the 8 heads that there are");
    }
    problem.head_shard.first = 4;
    run(problem, inputs);
}

// A long job is done in pieces. They are cut at multiples of 128 positions for each step of the largest dilation,
// rounded up to a power of two. The forward results are the same bits.
TEST(Equality, LongJobInPiecesIsBitEqual) {
    const Problem whole = {.length = 40000,
                           .heads = 1,
                           .dim = 16,
                           .branches = {{.segment = 1024}, {.dilation = 61, .query = ANNULUS_QUERY_RESIDUE}},
                           .causal = true,
                           .dtype = ANNULUS_FLOAT32};
    const Inputs inputs = random_inputs(whole, 3);
    const Results all = run(whole, inputs, {.backward = false});
    constexpr std::int64_t length = 8192; // of a piece
    for (std::int64_t start = 0; start < whole.length; start += length) {
        const std::int64_t count = std::min(length, whole.length - start);
        const Windowed part(whole, inputs, start, count);
        const Results results = run(part.problem, part.inputs, {.backward = false});
        const Results wanted = part.rows_of(all);
        expect_identical("out", results.out, wanted.out);
        expect_identical("lse", results.lse, wanted.lse);
    }
}

// Half precision is float32 inside: the results for the same inputs are those of float32, rounded to nearest.
TEST(Equality, HalfPrecisionIsFloat32RoundedAtTheEnd) {
    for (const auto engine : {ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU})
        for (const auto dtype : {ANNULUS_BFLOAT16, ANNULUS_FLOAT16}) {
            Problem problem = {.length = 200, .dim = 16, .branches = {{.segment = 64}, {.dilation = 3}}};
            problem.dtype = dtype;
            const Inputs inputs = random_inputs(problem, 11);
            const Results half = run(problem, inputs, {.engine = engine});
            problem.dtype = ANNULUS_FLOAT32;
            const Results single = run(problem, inputs, {.engine = engine});
            const auto expect_rounded = [&](const char *name, const std::vector<double> &got,
                                            const std::vector<double> &wanted) {
                const double noise = 1e-6 * greatest_magnitude(wanted);
                for (std::size_t i = 0; i < got.size(); ++i)
                    ASSERT_NEAR(got[i], wanted[i], rounding_unit(dtype) / 2 * std::fabs(wanted[i]) + noise)
                        << name << " in " << annulus_dtype_name(dtype) << ", " << annulus_engine_name(engine);
            };
            expect_rounded("out", half.out, single.out);
            expect_rounded("d_v", half.d_v, single.d_v);
            expect_near("lse", half.lse, single.lse, 1e-6);
        }
}

TEST(Equality, HilbertOrderOfEveryPositionIsLinearOrder) {
    for (const bool causal : {false, true})
        for (const auto query : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY}) {
            Problem linear = {.length = 150, .branches = {{.segment = 64, .query = query}, {.query = query}}};
            linear.causal = causal;
            Problem hilbert = linear;
            hilbert.branches[0].order = hilbert.branches[1].order = ANNULUS_ORDER_HILBERT;
            hilbert.branches[1].width = 15;
            const Inputs inputs = random_inputs(linear, 4);
            expect_equal(run(hilbert, inputs), run(linear, inputs));
        }
}

TEST(Equality, BranchTwiceAddsLogTwoToLse) {
    const Problem once = {.length = 90, .branches = {{.segment = 32}}};
    Problem twice = once;
    twice.branches.push_back(once.branches[0]);
    Inputs inputs = random_inputs(once, 5);
    Results wanted = run(once, inputs);
    for (double &value : wanted.lse)
        value += std::log(2.0);
    expect_equal(run(twice, inputs), wanted);
}

TEST(Equality, ResidueRuleIsOneDilatedBranchForEachResidue) {
    const Problem residue = {
        .length = 101, .heads = 3, .branches = {{.segment = 40, .dilation = 4, .query = ANNULUS_QUERY_RESIDUE}}};
    Problem dilated = residue;
    dilated.branches.clear();
    for (const std::int64_t x : {2, 0, 3, 1})
        dilated.branches.push_back({.segment = 40, .dilation = 4, .phase = ANNULUS_PHASE_FIXED, .residue = x});
    const Inputs inputs = random_inputs(residue, 6);
    expect_equal(run(dilated, inputs), run(residue, inputs));
}

TEST(Equality, DilationIsADenseSegmentOfEveryRthPosition) {
    const Problem dilated = {.length = 128, .branches = {{.dilation = 4, .phase = ANNULUS_PHASE_FIXED, .residue = 1}}};
    const Problem dense = {.length = 32};
    const Inputs inputs = random_inputs(dilated, 7);
    const std::size_t row = dilated.heads * dilated.dim;
    const auto kept = [](const std::vector<double> &values, std::size_t row_size) {
        std::vector<double> rows;
        for (std::size_t i = row_size; i < values.size(); i += 4 * row_size)
            rows.insert(rows.end(), values.begin() + i, values.begin() + i + row_size);
        return rows;
    };
    const Inputs few = {kept(inputs.q, row), kept(inputs.k, row), kept(inputs.v, row), kept(inputs.d_out, row),
                        kept(inputs.d_lse, 1)};
    const Results all = run(dilated, inputs);
    const Results wanted = run(dense, few);
    expect_near("out", kept(all.out, row), wanted.out, tolerance);
    expect_near("lse", kept(all.lse, 1), wanted.lse, tolerance);
    expect_near("d_q", kept(all.d_q, row), wanted.d_q, tolerance);
    expect_near("d_k", kept(all.d_k, row), wanted.d_k, tolerance);
    expect_near("d_v", kept(all.d_v, row), wanted.d_v, tolerance);
}

TEST(Equality, OrderOfKeysInADenseSegmentDoesNotMatter) {
    const Problem problem = {.length = 100};
    const Inputs inputs = random_inputs(problem, 8);
    std::vector<std::size_t> order(problem.length);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(9));
    const std::size_t row = problem.heads * problem.dim;
    const auto permuted = [&](const std::vector<double> &values) {
        std::vector<double> rows;
        for (const std::size_t n : order)
            rows.insert(rows.end(), values.begin() + n * row, values.begin() + (n + 1) * row);
        return rows;
    };
    Inputs shuffled = inputs;
    shuffled.k = permuted(inputs.k);
    shuffled.v = permuted(inputs.v);
    Results wanted = run(problem, inputs);
    wanted.d_k = permuted(wanted.d_k);
    wanted.d_v = permuted(wanted.d_v);
    expect_equal(run(problem, shuffled), wanted);
}

TEST(Equality, HeadGroupsPresetIsItsBranches) {
    const Problem by_hand = {.length = 64,
                             .heads = 5,
                             .branches = {{.segment = 16, .phase = ANNULUS_PHASE_FIXED, .head_count = 3},
                                          {.segment = 32,
                                           .dilation = 2,
                                           .phase = ANNULUS_PHASE_FIXED,
                                           .residue = 1,
                                           .first_head = 3,
                                           .head_count = 2}}};
    const Inputs inputs = random_inputs(by_hand, 10);
    const Results wanted = run(by_hand, inputs, {.backward = false});

    annulus_config *raw = nullptr;
    check(annulus_config_create(&raw));
    const Config config(raw);
    const std::int64_t segments[] = {16, 32}, dilations[] = {1, 2};
    check(annulus_config_add_head_groups(raw, 5, 2, segments, dilations));
    const Context context = make_context(raw, 1);
    std::vector<Tensor> t = Tensor::rows(Layout::rows, by_hand.dtype, 1, 64, {5, 5, 5, 5}, by_hand.dim);
    t[0].assign(inputs.q);
    t[1].assign(inputs.k);
    t[2].assign(inputs.v);
    check(annulus_forward(context.get(), &t[0].view(), &t[1].view(), &t[2].view(), &t[3].view(), nullptr, nullptr));
    expect_near("out", t[3].values(), wanted.out, tolerance);
}

} // namespace
} // namespace annulus::test
