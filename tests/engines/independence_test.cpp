// SPDX-License-Identifier: Apache-2.0
// What a result must not depend on. To the bit: the future (if causal), other batch entries, and other work at the same
// time. Up to rounding: the query window, and whether inputs share memory.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

namespace annulus::test {
namespace {

class EveryDtype : public testing::TestWithParam<annulus_dtype> {
  protected:
    const RunOptions options_ = subject();
};

std::string name_of(const testing::TestParamInfo<annulus_dtype> &info) {
    return annulus_dtype_name(info.param);
}

TEST_P(EveryDtype, TheFutureDoesNotReachThePast) {
    const Problem problem = taken(mixed_problem(GetParam()), options_);
    const Inputs inputs = random_inputs(problem, 1);
    const Inputs others = random_inputs(problem, 2);
    const Results before = run(problem, inputs, options_);
    for (const std::int64_t first_changed : {1, 63, 64, 65, 130, 256, 330}) {
        SCOPED_TRACE(testing::Message() << "changed from position " << first_changed);
        // The position of an element of [batch, length, row elements] or, with rows of 1, of [batch * heads, length].
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
        const Results after = run(problem, changed, options_);
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

TEST_P(EveryDtype, OtherBatchEntriesDoNotMatter) {
    const Problem problem = taken(mixed_problem(GetParam()), options_);
    const Inputs inputs = random_inputs(problem, 4);
    const Inputs others = random_inputs(problem, 5);
    const auto with_first_half_of = [](const std::vector<double> &other, std::vector<double> values) {
        std::copy_n(other.begin(), values.size() / 2, values.begin());
        return values;
    };
    const Inputs changed = {with_first_half_of(others.q, inputs.q), with_first_half_of(others.k, inputs.k),
                            with_first_half_of(others.v, inputs.v), with_first_half_of(others.d_out, inputs.d_out),
                            with_first_half_of(others.d_lse, inputs.d_lse)};
    const Results before = run(problem, inputs, options_);
    const Results after = run(problem, changed, options_);
    expect_identical({with_first_half_of(before.out, after.out), with_first_half_of(before.lse, after.lse),
                      with_first_half_of(before.d_q, after.d_q), with_first_half_of(before.d_k, after.d_k),
                      with_first_half_of(before.d_v, after.d_v)},
                     before);
}

TEST_P(EveryDtype, ContextsInThreadsDoNotDisturbEachOther) {
    const Problem problem = taken(mixed_problem(GetParam()), options_);
    constexpr int runners = 4;
    std::vector<Inputs> inputs;
    std::vector<Results> alone, together(runners);
    for (int i = 0; i < runners; ++i) {
        inputs.push_back(random_inputs(problem, 10 + i));
        alone.push_back(run(problem, inputs[i], options_));
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < runners; ++i)
        threads.emplace_back([&, i] {
            try {
                RunOptions options = options_;
                options.threads = 1 + i % 3;
                together[i] = run(problem, inputs[i], options);
            } catch (const std::exception &error) {
                ADD_FAILURE() << error.what();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    for (int i = 0; i < runners; ++i)
        expect_identical(together[i], alone[i]);
}

TEST_P(EveryDtype, WindowsAreSlicesOfTheWhole) {
    const double tolerance = tolerance_of(GetParam());
    for (const bool causal : {false, true}) {
        Problem whole = mixed_problem(GetParam());
        whole.causal = causal;
        whole.window = QueryWindow{1, 58};
        whole = taken(whole, options_);
        whole.window.reset();
        const Inputs inputs = random_inputs(whole, 6);
        const Results all = run(whole, inputs, options_);
        std::vector<double> d_k(whole.kv_size()), d_v(whole.kv_size());
        std::int64_t start = 0;
        for (const std::int64_t count : {1, 58, 2, 64, 65, 40, 101}) {
            SCOPED_TRACE(testing::Message() << "window of " << count << " at " << start);
            const Windowed part(whole, inputs, start, count);
            const Results results = run(part.problem, part.inputs, options_);
            const Results wanted = part.rows_of(all);
            expect_near("out", results.out, wanted.out, tolerance);
            expect_near("lse", results.lse, wanted.lse, tolerance);
            // dQ is a difference of terms whose size is that of O times the keys, which are about 1.
            expect_near("d_q", results.d_q, wanted.d_q, tolerance, norm(wanted.out));
            std::transform(d_k.begin(), d_k.end(), results.d_k.begin(), d_k.begin(), std::plus<>());
            std::transform(d_v.begin(), d_v.end(), results.d_v.begin(), d_v.begin(), std::plus<>());
            start += count;
        }
        ASSERT_EQ(start, whole.length);
        expect_near("d_k", d_k, all.d_k, tolerance);
        expect_near("d_v", d_v, all.d_v, tolerance);
    }
}

// Inputs may overlap one another and may repeat rows.
TEST_P(EveryDtype, OneTensorForQAndKAndVAndOneEntryForTheBatch) {
    const Problem problem = {
        .batch = 3, .length = 70, .dim = 16, .branches = {{.segment = 32}, {.dilation = 3}}, .dtype = GetParam()};
    Inputs inputs = random_inputs(problem, 20);
    const std::size_t entry = inputs.q.size() / problem.batch;
    for (std::size_t i = 0; i < inputs.q.size(); ++i)
        inputs.k[i] = inputs.v[i] = inputs.q[i] = inputs.q[i % entry];
    const Results wanted = run(problem, inputs, options_);

    Tensor rows = Tensor::rows(Layout::rows, problem.dtype, 1, problem.length, {problem.heads}, problem.dim)[0];
    rows.assign(std::vector<double>(inputs.q.begin(), inputs.q.begin() + static_cast<std::ptrdiff_t>(entry)));
    Copies copies(*options_.memory, options_.aligned);
    annulus_tensor shared = copies.view(rows);
    shared.shape[0] = problem.batch;
    shared.stride[0] = 0;
    Call call(problem, inputs, *options_.memory, options_.aligned);
    call.arguments.q = call.arguments.k = call.arguments.v = shared;
    const Config config = make_config(problem, options_);
    const Context context = make_context(config.get(), options_.threads, *options_.memory);
    const annulus_status status = call.forward(context.get());
    if (status == ANNULUS_ERROR_UNSUPPORTED && options_.refusal)
        GTEST_SKIP() << annulus_last_error();
    check(status);
    check(call.backward(context.get()));
    expect_near(call.results(), wanted, tolerance_of(problem.dtype));
}

INSTANTIATE_TEST_SUITE_P(Independence, EveryDtype, testing::ValuesIn(subject_dtypes()), name_of);

} // namespace
} // namespace annulus::test
