// SPDX-License-Identifier: Apache-2.0
// What a result must not depend on, to the bit: the future (when causal), other batch entries, the number of threads,
// what else runs at the time; and inputs that share memory.
#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

namespace annulus::test {
namespace {

const annulus_dtype dtypes[] = {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};

Problem mixed_problem(annulus_dtype dtype) {
    return {.batch = 2,
            .length = 331,
            .heads = 6,
            .kv_heads = 3,
            .dim = 24,
            .branches = {{.segment = 64},
                         {.segment = 150, .dilation = 3, .query = ANNULUS_QUERY_EVERY},
                         {.dilation = 4, .query = ANNULUS_QUERY_RESIDUE, .order = ANNULUS_ORDER_HILBERT}},
            .causal = true,
            .dtype = dtype};
}

class EveryDtype : public testing::TestWithParam<annulus_dtype> {};

std::string name_of(const testing::TestParamInfo<annulus_dtype> &info) {
    return annulus_dtype_name(info.param);
}

TEST_P(EveryDtype, TheFutureDoesNotReachThePast) {
    const Problem problem = mixed_problem(GetParam());
    const Inputs inputs = random_inputs(problem, 1);
    const Inputs others = random_inputs(problem, 2);
    const Results before = run(problem, inputs);
    for (const std::int64_t first_changed : {1, 63, 64, 65, 130, 256, 330}) {
        SCOPED_TRACE(testing::Message() << "changed from position " << first_changed);
        // Positions of [batch, length, row elements] or, with rows of 1, of [batch * heads, length].
        const auto position = [&](std::size_t element, std::size_t row) {
            return static_cast<std::int64_t>(element / row) % problem.length;
        };
        const auto change = [&](std::vector<double> &values, const std::vector<double> &to, std::size_t row) {
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = position(i, row) >= first_changed ? to[i] : values[i];
        };
        const std::size_t q_row = problem.heads * problem.dim, kv_row = problem.kv() * problem.dim;
        Inputs changed = inputs;
        change(changed.q, others.q, q_row);
        change(changed.k, others.k, kv_row);
        change(changed.v, others.v, kv_row);
        change(changed.d_out, others.d_out, q_row);
        change(changed.d_lse, others.d_lse, 1);
        const Results after = run(problem, changed);
        const auto expect_same_past = [&](const char *name, std::vector<double> now, const std::vector<double> &was,
                                          std::size_t row) {
            for (std::size_t i = 0; i < now.size(); ++i)
                now[i] = position(i, row) >= first_changed ? was[i] : now[i];
            expect_identical(name, now, was);
        };
        expect_same_past("out", after.out, before.out, q_row);
        expect_same_past("lse", after.lse, before.lse, 1);
        expect_same_past("d_q", after.d_q, before.d_q, q_row);
    }
}

TEST_P(EveryDtype, ThreadsDoNotChangeBits) {
    Problem problem = mixed_problem(GetParam());
    for (const bool causal : {false, true}) {
        problem.causal = causal;
        const Inputs inputs = random_inputs(problem, 3);
        const Results alone = run(problem, inputs, {.threads = 1});
        for (const int threads : {2, 3, 7, 64})
            expect_identical(run(problem, inputs, {.threads = threads}), alone);
    }
}

TEST_P(EveryDtype, BatchEntriesAreIndependent) {
    const Problem both = mixed_problem(GetParam());
    Problem one = both;
    one.batch = 1;
    const Inputs inputs = random_inputs(both, 4);
    const auto second_half = [](const std::vector<double> &values) {
        return std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    };
    const Inputs second = {second_half(inputs.q), second_half(inputs.k), second_half(inputs.v),
                           second_half(inputs.d_out), second_half(inputs.d_lse)};
    const Results all = run(both, inputs);
    const Results wanted = {second_half(all.out), second_half(all.lse), second_half(all.d_q), second_half(all.d_k),
                            second_half(all.d_v)};
    expect_identical(run(one, second), wanted);
}

TEST_P(EveryDtype, ContextsInThreadsDoNotDisturbEachOther) {
    const Problem problem = mixed_problem(GetParam());
    constexpr int runners = 4;
    std::vector<Inputs> inputs;
    std::vector<Results> alone, together(runners);
    for (int i = 0; i < runners; ++i) {
        inputs.push_back(random_inputs(problem, 10 + i));
        alone.push_back(run(problem, inputs[i]));
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < runners; ++i)
        threads.emplace_back([&, i] {
            try {
                together[i] = run(problem, inputs[i], {.threads = 1 + i % 3});
            } catch (const std::exception &error) {
                ADD_FAILURE() << error.what();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    for (int i = 0; i < runners; ++i)
        expect_identical(together[i], alone[i]);
}

INSTANTIATE_TEST_SUITE_P(Independence, EveryDtype, testing::ValuesIn(dtypes), name_of);

// Inputs may overlap one another and repeat rows.
TEST(SharedInputs, OneTensorForQAndKAndVAndOneEntryForTheBatch) {
    Problem problem = {.batch = 3, .length = 70, .dim = 16, .branches = {{.segment = 32}, {.dilation = 3}}};
    Inputs inputs = random_inputs(problem, 20);
    const std::size_t entry = inputs.q.size() / problem.batch;
    for (std::size_t i = 0; i < inputs.q.size(); ++i)
        inputs.k[i] = inputs.v[i] = inputs.q[i] = inputs.q[i % entry];
    const Results wanted = run(problem, inputs);

    std::vector<Tensor> made = Tensor::rows(Layout::rows, problem.dtype, 1, problem.length, {problem.heads}, 16);
    made[0].assign(std::vector<double>(inputs.q.begin(), inputs.q.begin() + static_cast<std::ptrdiff_t>(entry)));
    annulus_tensor shared = made[0].view();
    shared.shape[0] = problem.batch;
    shared.stride[0] = 0;
    const auto rows = [&] {
        return Tensor::rows(Layout::rows, problem.dtype, 3, problem.length, {problem.heads}, 16)[0];
    };
    Tensor out = rows(), d_out = rows(), d_q = rows(), d_k = rows(), d_v = rows();
    Tensor lse = Tensor::statistics(Layout::rows, problem.dtype, 3, problem.heads, problem.length);
    Tensor d_lse = Tensor::statistics(Layout::rows, problem.dtype, 3, problem.heads, problem.length);
    d_out.assign(inputs.d_out);
    d_lse.assign(inputs.d_lse);

    const Config config = make_config(problem, ANNULUS_ENGINE_CPU);
    const Context context = make_context(config.get(), 2);
    check(annulus_forward(context.get(), &shared, &shared, &shared, &out.view(), &lse.view(), nullptr));
    check(annulus_backward(context.get(), &shared, &shared, &shared, &out.view(), &lse.view(), &d_out.view(),
                           &d_lse.view(), &d_q.view(), &d_k.view(), &d_v.view(), nullptr));
    expect_identical({out.values(), lse.values(), d_q.values(), d_k.values(), d_v.values()}, wanted);
}

} // namespace
} // namespace annulus::test
