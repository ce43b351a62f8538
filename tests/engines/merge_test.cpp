// SPDX-License-Identifier: Apache-2.0
// Merges of results over different keys, against one softmax over all keys, which is written down here. Also the
// gradients of the parts against finite differences, and rows with -infinity, NaN and infinity.
#include "engines/subject.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <sstream>

namespace annulus::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// ---- Calls of annulus_merge() on watched tensors.

struct Parts {
    Problem problem; // sizes, dtype and layout of the results
    std::vector<std::vector<double>> outs, lses;
};

struct Merged {
    std::vector<double> out, lse;
};

struct MergeOptions {
    int in_place_of = -1; // index of the part whose tensors are written
    bool with_lse = true;
    int threads = 2;
    bool aligned = false;
};

Merged merge(const Parts &parts, const MergeOptions &options = {}) {
    const Problem &p = parts.problem;
    Memory &memory = *subject().memory;
    Copies copies(memory, options.aligned);
    std::vector<Tensor> outs, lses;
    std::vector<annulus_tensor> out_views, lse_views;
    const std::size_t count = parts.outs.size();
    for (std::size_t i = 0; i <= count; ++i) { // the last tensors are for the results
        // Parts differ in their strides.
        const Layout layout = i % 2 == 0 ? p.layout : Layout::heads_first;
        outs.push_back(Tensor::rows(layout, p.dtype, p.batch, p.length, {p.heads}, p.dim)[0]);
        lses.push_back(Tensor::statistics(layout, statistics_dtype(p.dtype), p.batch, p.heads, p.length));
        if (i < count) {
            outs[i].assign(parts.outs[i]);
            lses[i].assign(parts.lses[i]);
        }
        outs[i].memory().remember();
        lses[i].memory().remember();
        out_views.push_back(copies.view(outs[i]));
        lse_views.push_back(copies.view(lses[i]));
    }
    const std::size_t target = options.in_place_of < 0 ? count : static_cast<std::size_t>(options.in_place_of);
    const annulus_tensor out = out_views[target], lse = lse_views[target];

    annulus_context *raw = nullptr; // without a config
    check(annulus_context_create(&raw, memory.device(), memory.index()));
    const Context context(raw);
    if (memory.device() == ANNULUS_DEVICE_CUDA)
        check(annulus_context_set_stream(raw, memory.stream()));
    check(annulus_context_set_threads(raw, options.threads));
    check(annulus_merge(raw, static_cast<std::int32_t>(count), out_views.data(), lse_views.data(), &out,
                        options.with_lse ? &lse : nullptr, nullptr));
    copies.download();
    for (std::size_t i = 0; i <= count; ++i) {
        EXPECT_TRUE(outs[i].memory().intact()) << "written outside the elements of O " << i;
        EXPECT_TRUE(lses[i].memory().intact()) << "written outside the elements of LSE " << i;
        EXPECT_TRUE(i == target || outs[i].memory().as_remembered()) << "O " << i << " was written";
        EXPECT_TRUE((i == target && options.with_lse) || lses[i].memory().as_remembered()) << "LSE " << i;
    }
    return {outs[target].values(), lses[target].values()};
}

// Returns values that results of parts may have: LSE of any size, sometimes -infinity, and there NaN in O.
Parts random_parts(const Problem &problem, std::size_t count, std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    Parts parts = {problem, {}, {}};
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<double> out(problem.q_size()), lse(problem.lse_size());
        for (double &value : out)
            value = round_to(problem.dtype, normal(generator));
        for (std::size_t row = 0; row < lse.size(); ++row) {
            lse[row] = round_to(statistics_dtype(problem.dtype), 30 * normal(generator));
            if (generator() % 4 == 0)
                lse[row] = -infinity;
        }
        parts.outs.push_back(out);
        parts.lses.push_back(lse);
    }
    return parts;
}

// Calls use(index of the row's LSE, index of its first O).
template <class Use> void for_each_row(const Problem &p, const Use &use) {
    for (std::int64_t b = 0; b < p.batch; ++b)
        for (std::int64_t h = 0; h < p.heads; ++h)
            for (std::int64_t n = 0; n < p.length; ++n)
                use(static_cast<std::size_t>((b * p.heads + h) * p.length + n),
                    static_cast<std::size_t>(((b * p.length + n) * p.heads + h) * p.dim));
}

// Computes the formula in float64.
Merged merge_by_definition(Parts parts) {
    const Problem &p = parts.problem;
    Merged merged = {std::vector<double>(p.q_size()), std::vector<double>(p.lse_size(), -infinity)};
    for_each_row(p, [&](std::size_t lse_at, std::size_t out_at) {
        double largest = -infinity, sum = 0;
        for (const std::vector<double> &lse : parts.lses)
            largest = std::max(largest, lse[lse_at]);
        if (largest == -infinity)
            return;
        for (const std::vector<double> &lse : parts.lses)
            sum += std::exp(lse[lse_at] - largest);
        merged.lse[lse_at] = largest + std::log(sum);
        for (std::size_t i = 0; i < parts.outs.size(); ++i)
            for (std::size_t d = 0; parts.lses[i][lse_at] != -infinity && d < static_cast<std::size_t>(p.dim); ++d)
                merged.out[out_at + d] += std::exp(parts.lses[i][lse_at] - largest) / sum * parts.outs[i][out_at + d];
    });
    return merged;
}

// Expects O rounded once: half a unit of the dtype, in addition to the error of float32 sums.
void expect_merged(const Problem &p, const Merged &got, const Merged &wanted) {
    const bool is_double = p.dtype == ANNULUS_FLOAT64;
    const double noise = is_double ? 1e-14 : 1e-5,
                 unit = is_double || p.dtype == ANNULUS_FLOAT32 ? 0 : rounding_unit(p.dtype) / 2;
    const double subnormal = p.dtype == ANNULUS_FLOAT16 ? 0x1p-25 : 0;
    for (std::size_t i = 0; i < wanted.out.size(); ++i)
        ASSERT_NEAR(got.out[i], wanted.out[i], unit * std::fabs(wanted.out[i]) + noise + subnormal) << "O at " << i;
    for (std::size_t i = 0; i < wanted.lse.size(); ++i)
        if (wanted.lse[i] == -infinity)
            ASSERT_EQ(got.lse[i], -infinity) << "LSE at " << i;
        else
            ASSERT_NEAR(got.lse[i], wanted.lse[i], (is_double ? 1e-15 : 3e-7) * (1 + std::fabs(wanted.lse[i])))
                << "LSE at " << i;
}

TEST(Merge, IsItsFormula) {
    std::uint64_t seed = 0;
    for (const annulus_dtype dtype : subject_dtypes())
        for (const std::int32_t dim : {8, 24, 64, 72, 136, 256})
            for (const Layout layout : {Layout::rows, Layout::heads_first, Layout::gaps}) {
                const std::size_t count = 1 + seed % 9;
                Parts parts =
                    random_parts({.batch = 2, .length = 37, .heads = 3, .dim = dim, .layout = layout, .dtype = dtype},
                                 count, ++seed);
                const Merged wanted = merge_by_definition(parts);
                for_each_row(parts.problem, [&](std::size_t lse_at, std::size_t out_at) {
                    for (std::size_t i = 0; i < count; ++i)
                        if (parts.lses[i][lse_at] == -infinity) // does not count
                            parts.outs[i][out_at + seed % dim] = std::nan("");
                });
                std::ostringstream what;
                what << parts.problem << ", parts: " << count;
                SCOPED_TRACE(what.str());
                const Merged merged = merge(parts, {.aligned = seed % 2 == 0});
                expect_merged(parts.problem, merged, wanted);
                // In place of each part, with another number of threads, without LSE: the same bits.
                const Merged in_place = merge(parts, {.in_place_of = static_cast<int>(seed % count), .threads = 1});
                expect_identical("O in place", in_place.out, merged.out);
                expect_identical("LSE in place", in_place.lse, merged.lse);
                expect_identical("O without LSE", merge(parts, {.with_lse = false}).out, merged.out);
            }
}

TEST(Merge, TakesManyPartsManyRowsAndOneRow) {
    const annulus_dtype dtype = subject_usual_dtype();
    const Problem many_rows = {.batch = 3, .length = 1025, .heads = 5, .dim = 16, .dtype = dtype};
    for (const Problem &problem : {many_rows, Problem{.length = 1, .heads = 1, .dtype = dtype}})
        for (const std::size_t count : {std::size_t{1}, std::size_t{ANNULUS_MAX_MERGE_PARTS}}) {
            const Parts parts = random_parts(problem, count, count);
            expect_merged(problem, merge(parts), merge_by_definition(parts));
        }
}

TEST(Merge, OnePartStaysItself) {
    const Parts parts = random_parts({.length = 50, .dim = 32, .dtype = subject_usual_dtype()}, 1, 3);
    const Merged merged = merge(parts);
    Parts expected = parts;
    for_each_row(parts.problem, [&](std::size_t lse_at, std::size_t out_at) {
        for (int d = 0; d < parts.problem.dim && parts.lses[0][lse_at] == -infinity; ++d)
            expected.outs[0][out_at + d] = 0;
    });
    expect_identical("O", merged.out, expected.outs[0]);
    expect_identical("LSE", merged.lse, expected.lses[0]);
}

TEST(Merge, NanAndInfinityReachTheirRowsOnly) {
    const Problem problem = {.batch = 2, .length = 20, .heads = 3, .dim = 40, .dtype = subject_usual_dtype()};
    for (const double bad : {std::nan(""), infinity}) {
        const Parts clean = random_parts(problem, 3, 7);
        const Merged wanted = merge(clean);
        Parts parts = clean;
        const std::size_t bad_row = 47;
        parts.lses[1][bad_row] = bad;
        const Merged merged = merge(parts);
        for_each_row(problem, [&](std::size_t lse_at, std::size_t out_at) {
            EXPECT_EQ(std::isnan(merged.lse[lse_at]), lse_at == bad_row);
            EXPECT_TRUE(lse_at == bad_row || merged.lse[lse_at] == wanted.lse[lse_at]);
            for (std::size_t i = out_at; i < out_at + problem.dim; ++i) {
                EXPECT_EQ(std::isnan(merged.out[i]), lse_at == bad_row);
                EXPECT_TRUE(lse_at == bad_row || merged.out[i] == wanted.out[i]);
            }
        });
    }
    // NaN in O of a part that counts.
    Parts parts = random_parts(problem, 2, 8);
    parts.lses[0].assign(problem.lse_size(), 1);
    const std::size_t row = 5 * problem.dim;
    parts.outs[0][row + 9] = std::nan("");
    const Merged merged = merge(parts);
    for (std::size_t i = 0; i < merged.out.size(); ++i)
        EXPECT_EQ(std::isnan(merged.out[i]), i == row + 9) << i;
}

// An infinite element of a part makes the merged element infinite, however small its weight. Only infinities of both
// signs, or NaN, give NaN. The weights here are far below the smallest number of the sums' type.
TEST(Merge, InfiniteElementsStay) {
    for (const annulus_dtype dtype : subject_dtypes()) {
        const Problem problem = {.batch = 2, .length = 20, .heads = 3, .dim = 40, .dtype = dtype};
        Parts parts = random_parts(problem, 11, 9);
        std::mt19937_64 generator(10);
        for (std::size_t i = 0; i < parts.outs.size(); ++i) {
            for (double &lse : parts.lses[i])
                lse -= i % 3 == 1 ? 200.0 : i % 3 == 2 ? 2000.0 : 0.0;
            for (double &element : parts.outs[i]) {
                const std::uint64_t choice = generator() % 100;
                element = choice < 4 ? infinity : choice < 8 ? -infinity : choice == 8 ? std::nan("") : element;
            }
        }
        Parts finite = parts;
        for (std::vector<double> &out : finite.outs)
            for (double &element : out)
                element = std::isfinite(element) ? element : 0;
        const Merged merged = merge(parts), finite_result = merge(finite);
        expect_merged(problem, finite_result, merge_by_definition(finite));
        std::size_t infinities = 0;
        for_each_row(problem, [&](std::size_t lse_at, std::size_t out_at) {
            ASSERT_EQ(merged.lse[lse_at], finite_result.lse[lse_at]);
            for (std::size_t d = out_at; d < out_at + static_cast<std::size_t>(problem.dim); ++d) {
                bool has_plus = false, has_minus = false, has_nan = false;
                for (std::size_t i = 0; i < parts.outs.size(); ++i)
                    if (parts.lses[i][lse_at] != -infinity) {
                        has_plus |= parts.outs[i][d] == infinity;
                        has_minus |= parts.outs[i][d] == -infinity;
                        has_nan |= std::isnan(parts.outs[i][d]);
                    }
                infinities += !has_nan && has_plus != has_minus;
                if (has_nan || (has_plus && has_minus))
                    ASSERT_TRUE(std::isnan(merged.out[d])) << merged.out[d] << " at " << d;
                else if (has_plus || has_minus)
                    ASSERT_EQ(merged.out[d], has_plus ? infinity : -infinity) << "at " << d;
                else
                    ASSERT_EQ(merged.out[d], finite_result.out[d]) << "at " << d;
            }
        });
        EXPECT_GT(infinities, 1000U);
    }
}

// ---- Attention over separate sets of keys.

// A problem whose queries attend to keys of two sets: each has its own K, V and config.
struct Apart {
    Problem problems[2];
    Inputs inputs[2]; // with the same q, d_out and d_lse
};

// The first set is some keys of its sequence, for some of the queries. The second one is all keys, in two branches.
Apart keys_apart(annulus_dtype dtype) {
    Apart apart;
    apart.problems[0] = {.batch = 2,
                         .length = 13,
                         .heads = 4,
                         .kv_heads = 2,
                         .branches = {{.segment = 5, .dilation = 2}},
                         .causal = true,
                         .dtype = dtype};
    apart.problems[1] = apart.problems[0];
    apart.problems[1].branches = {{.segment = 6}, {.dilation = 3, .query = ANNULUS_QUERY_EVERY}};
    apart.problems[1].causal = false;
    for (int i = 0; i < 2; ++i)
        apart.inputs[i] = random_inputs(apart.problems[i], 20 + i);
    apart.inputs[1].q = apart.inputs[0].q;
    apart.inputs[1].d_out = apart.inputs[0].d_out;
    apart.inputs[1].d_lse = apart.inputs[0].d_lse;
    return apart;
}

// Adapts the rows of the problems so that the engine accepts them.
Apart taken(Apart apart, const RunOptions &options) {
    for (Problem &problem : apart.problems)
        problem = taken(problem, options);
    return apart;
}

// Computes one softmax over both sets, in float64, pair by pair.
Merged attend(const Apart &apart) {
    const Problem &p = apart.problems[0];
    const Mask masks[] = {Mask(apart.problems[0]), Mask(apart.problems[1])};
    Merged merged = {std::vector<double>(p.q_size()), std::vector<double>(p.lse_size(), -infinity)};
    for_each_row(p, [&](std::size_t lse_at, std::size_t out_at) {
        const auto n = static_cast<std::int64_t>(lse_at) % p.length;
        const auto h = static_cast<std::int32_t>(static_cast<std::int64_t>(lse_at) / p.length % p.heads);
        const std::int64_t b = static_cast<std::int64_t>(lse_at) / p.length / p.heads;
        double sum = 0;
        std::vector<double> row(p.dim);
        for (int i = 0; i < 2; ++i)
            for (const std::int64_t m : masks[i].keys(n, h).positions) {
                const auto key = static_cast<std::size_t>(((b * p.length + m) * p.kv() + p.kv_head(h)) * p.dim);
                double score = 0;
                for (int d = 0; d < p.dim; ++d)
                    score += apart.inputs[i].q[out_at + d] * apart.inputs[i].k[key + d];
                const double weight = std::exp(score * p.scale_or_default());
                sum += weight;
                for (int d = 0; d < p.dim; ++d)
                    row[d] += weight * apart.inputs[i].v[key + d];
            }
        merged.lse[lse_at] = std::log(sum);
        for (int d = 0; d < p.dim && sum > 0; ++d)
            merged.out[out_at + d] = row[d] / sum;
    });
    return merged;
}

double loss(const Apart &apart) {
    const Merged merged = attend(apart);
    double sum = 0;
    for (std::size_t i = 0; i < merged.out.size(); ++i)
        sum += apart.inputs[0].d_out[i] * merged.out[i];
    for (std::size_t i = 0; i < merged.lse.size(); ++i)
        sum += std::isinf(merged.lse[i]) ? 0 : apart.inputs[0].d_lse[i] * merged.lse[i];
    return sum;
}

std::vector<double> central_differences(Apart apart, std::vector<double> Inputs::*which, int set_index) {
    constexpr double step = 1e-5;
    std::vector<double> differences((apart.inputs[set_index].*which).size());
    const auto loss_at = [&](std::size_t i, double moved) {
        Apart there = apart;
        (there.inputs[set_index].*which)[i] += moved;
        there.inputs[1].q = which == &Inputs::q ? there.inputs[0].q : there.inputs[1].q;
        return loss(there);
    };
    for (std::size_t i = 0; i < differences.size(); ++i)
        differences[i] = (loss_at(i, step) - loss_at(i, -step)) / (2 * step);
    return differences;
}

// Computes backward of one set with the merged results.
Results gradients_of_part(const Problem &problem, const Inputs &inputs, const Merged &merged,
                          const RunOptions &options) {
    Memory &memory = *options.memory;
    Call call(problem, inputs, memory, options.aligned);
    Tensor out =
        Tensor::rows(problem.layout, problem.dtype, problem.batch, problem.length, {problem.heads}, problem.dim)[0];
    Tensor lse = Tensor::statistics(problem.layout, statistics_dtype(problem.dtype), problem.batch, problem.heads,
                                    problem.length);
    out.assign(merged.out);
    lse.assign(merged.lse);
    Copies copies(memory, options.aligned);
    call.arguments.out = copies.view(out);
    call.arguments.lse = copies.view(lse);
    const Config config = make_config(problem, options);
    const Context context = make_context(config.get(), options.threads, memory);
    check(call.backward(context.get()));
    return call.results();
}

struct Computed {
    Merged merged;
    Results parts[2];
    std::vector<double> d_q;
};

Computed compute(const Apart &apart, const RunOptions &options) {
    Parts results = {apart.problems[0], {}, {}};
    RunOptions forward_only = options;
    forward_only.backward = false;
    for (int i = 0; i < 2; ++i) {
        const Results part = run(apart.problems[i], apart.inputs[i], forward_only);
        results.outs.push_back(part.out);
        results.lses.push_back(part.lse);
    }
    Computed computed;
    computed.merged = merge(results);
    for (int i = 0; i < 2; ++i)
        computed.parts[i] = gradients_of_part(apart.problems[i], apart.inputs[i], computed.merged, options);
    computed.d_q = computed.parts[0].d_q;
    for (std::size_t i = 0; i < computed.d_q.size(); ++i)
        computed.d_q[i] += computed.parts[1].d_q[i];
    return computed;
}

TEST(Merge, IsOneSoftmaxOverAllKeys) {
    for (const annulus_dtype dtype : subject_dtypes())
        for (RunOptions options : subject_ways()) {
            options.workspace_limit = 0; // merging uses none
            const Apart apart = taken(keys_apart(dtype), options);
            const Computed computed = compute(apart, options);
            const Merged wanted = attend(apart);
            // Parts are rounded, too; their LSE is not rounded to the dtype.
            const double tolerance = std::max(tolerance_of(statistics_dtype(dtype)),
                                              dtype == statistics_dtype(dtype) ? 0 : rounding_unit(dtype));
            expect_near("O", computed.merged.out, wanted.out, tolerance);
            Merged finite[2] = {computed.merged, wanted};
            for (std::size_t i = 0; i < wanted.lse.size(); ++i) {
                ASSERT_EQ(std::isinf(finite[0].lse[i]), std::isinf(wanted.lse[i]));
                for (Merged &each : finite)
                    each.lse[i] = std::isinf(each.lse[i]) ? 0 : each.lse[i];
            }
            expect_near("LSE", finite[0].lse, finite[1].lse, tolerance);
        }
}

TEST(Merge, BackwardOfThePartsIsTheGradient) {
    for (const annulus_dtype dtype : subject_dtypes()) {
        const Apart apart = keys_apart(dtype);
        const bool is_double = dtype == ANNULUS_FLOAT64;
        std::vector<RunOptions> ways = {subject()};
        if (is_double)
            ways.push_back({.engine = ANNULUS_ENGINE_REFERENCE});
        const std::vector<double> d_q = central_differences(apart, &Inputs::q, 0);
        const std::vector<double> d_k[] = {central_differences(apart, &Inputs::k, 0),
                                           central_differences(apart, &Inputs::k, 1)};
        const std::vector<double> d_v[] = {central_differences(apart, &Inputs::v, 0),
                                           central_differences(apart, &Inputs::v, 1)};
        const bool is_half = dtype == ANNULUS_BFLOAT16 || dtype == ANNULUS_FLOAT16;
        const double tolerance = is_half ? 4 * rounding_unit(dtype) : is_double ? 1e-7 : 1e-5;
        for (const RunOptions &options : ways) {
            SCOPED_TRACE(std::string(annulus_dtype_name(dtype)) + ", " + annulus_engine_name(options.engine));
            const Computed computed = compute(taken(apart, options), options);
            expect_near("d_q", computed.d_q, d_q, tolerance);
            for (int i = 0; i < 2; ++i) {
                expect_near("d_k", computed.parts[i].d_k, d_k[i], tolerance);
                expect_near("d_v", computed.parts[i].d_v, d_v[i], tolerance);
            }
        }
    }
}

} // namespace
} // namespace annulus::test
