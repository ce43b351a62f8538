// SPDX-License-Identifier: Apache-2.0
// A call that is repeated: it allocates nothing on the host (with sequences only their list), gives the same bits, and
// accepts tensors at other addresses.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/allocations.hpp"
#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

// One thread: each call would start further threads anew.
RunOptions on_one_thread() {
    RunOptions options = subject();
    options.threads = 1;
    return options;
}

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all;
    for (const bool causal : {false, true}) {
        const std::string causality = causal ? "_causal" : "";
        const auto add = [&](const std::string &name, Problem problem) {
            problem.causal = causal;
            problem.dtype = subject_usual_dtype();
            all.push_back({name + causality, problem});
        };
        add("one_branch", {.length = 333, .heads = 3, .dim = 40, .branches = {{.segment = 100, .dilation = 2}}});
        add("three_branches", {.length = 517,
                               .heads = 4,
                               .dim = 64,
                               .branches = {{.segment = 64}, {.segment = 192, .dilation = 3}, {.dilation = 6}}});
        add("several_grids", {.length = 301, .heads = 2, .branches = {{.dilation = 2}, {.dilation = 3}}});
        add("shared_heads", {.length = 257, .heads = 4, .kv_heads = 2, .branches = {{.segment = 129}}});
        add("packed_sequences", {.length = 400,
                                 .heads = 2,
                                 .dim = 64,
                                 .branches = {{.segment = 64}, {.dilation = 3}},
                                 .sequences = Sequences{{5, 70, 70, 200, 390}, {}}});
        add("padded_batch", {.batch = 3,
                             .length = 200,
                             .heads = 2,
                             .dim = 64,
                             .branches = {{.segment = 64}, {.dilation = 3}},
                             .sequences = Sequences{{}, {200, 0, 77}}});
        add("curve",
            {.length = 400, .heads = 2, .branches = {{.segment = 200, .dilation = 2, .order = ANNULUS_ORDER_HILBERT}}});
    }
    return all;
}

class Repeated : public testing::TestWithParam<NamedProblem> {
  protected:
    const RunOptions options_ = on_one_thread();
    const Problem problem_ = taken(GetParam().problem, options_);
    const Config config_ = make_config(problem_, options_);
    const Context context_ = make_context(config_.get(), options_.threads, *options_.memory);
    Allocation workspace_;

    // Without it each call would allocate a workspace.
    void give_workspace() {
        const annulus_call_options call_options = options_of(problem_);
        const annulus_problem sizes = sizes_of(problem_, &call_options);
        std::uint64_t most = 0;
        for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
            std::uint64_t bytes = 0;
            check(annulus_workspace_size(context_.get(), &sizes, pass, &bytes));
            most = std::max(most, bytes);
        }
        workspace_ = allocate(*options_.memory, most);
        check(annulus_context_set_workspace(context_.get(), workspace_.get(), most));
    }

    void call(const Call &tensors) const {
        check(tensors.forward(context_.get()));
        check(tensors.backward(context_.get()));
    }
};

TEST_P(Repeated, AllocatesNothingAndGivesTheSameBits) {
    const Inputs inputs = random_inputs(problem_, 1);
    Call tensors(problem_, inputs, *options_.memory, options_.aligned);
    give_workspace();
    call(tensors);
    const Results first = tensors.results();
    tensors.reset(inputs);
    const long before = allocations_made();
    call(tensors);
    const long made = allocations_made() - before;
    // Each of the two calls lists up to four sequences, in a vector that grows in three steps, and keeps a copy.
    EXPECT_LE(made, problem_.sequences ? 2 * 4 : 0);
    expect_identical(tensors.results(), first);
}

// Alternates between tensors of the same sizes at other addresses and in another layout.
TEST_P(Repeated, FollowsItsTensors) {
    const std::vector<Inputs> inputs = {random_inputs(problem_, 1), random_inputs(problem_, 2)};
    Problem other = problem_;
    other.layout = problem_.layout == Layout::rows ? Layout::heads_first : Layout::rows;
    Call a(problem_, inputs[0], *options_.memory, options_.aligned);
    Call b(problem_, inputs[1], *options_.memory, options_.aligned);
    Call c(other, inputs[0], *options_.memory, options_.aligned);
    std::vector<Results> results;
    for (int round = 0; round < 2; ++round) {
        a.reset(inputs[0]);
        b.reset(inputs[1]);
        c.reset(inputs[0]);
        for (Call *tensors : {&a, &b, &c}) {
            call(*tensors);
            results.push_back(tensors->results());
        }
    }
    for (int i = 0; i < 3; ++i)
        expect_identical(results[static_cast<std::size_t>(i)], results[static_cast<std::size_t>(i + 3)]);
    expect_identical("out", run(problem_, inputs[0], options_).out, results[0].out);
    expect_identical("out", run(problem_, inputs[1], options_).out, results[1].out);
    expect_identical("out", run(other, inputs[0], options_).out, results[2].out);
}

INSTANTIATE_TEST_SUITE_P(Calls, Repeated, testing::ValuesIn(problems()),
                         [](const auto &named) { return named.param.name; });

} // namespace
} // namespace annulus::test
