// SPDX-License-Identifier: Apache-2.0
// Tests which problems `fused` refuses, because of dtype, rows or workspace. `auto` then uses another engine. Also
// tests problems that it does not refuse.
#include "cuda/fused/calls.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

Problem small_problem() {
    return {.length = 300,
            .heads = 2,
            .dim = 64,
            .branches = {{.segment = 100}, {.dilation = 3}},
            .causal = true,
            .dtype = ANNULUS_BFLOAT16};
}

TEST(Auto, IsFused) {
    for (const annulus_dtype dtype : subject_dtypes()) {
        Problem problem = small_problem();
        problem.dtype = dtype;
        const Inputs inputs = random_inputs(problem, 1);
        const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
        Call call(problem, inputs, device_memory(), true);
        check(call.forward(context.get()));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        check(call.backward(context.get()));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        expect_agreement(problem, inputs, call.results(), run_exact(problem, inputs));
    }
}

// Expects that `fused` refuses a pass, and that `auto` uses another engine for it.
void expect_instead(annulus_engine other, const Problem &problem, Call &call, annulus_pass pass,
                    const std::string &reason) {
    const Results before = call.results(pass);
    expect_refused(compute(call, pass, context_for(problem, ANNULUS_ENGINE_FUSED)), ANNULUS_ERROR_UNSUPPORTED, reason);
    expect_identical(call.results(pass), before);
    const Context automatic = context_for(problem, ANNULUS_ENGINE_AUTO);
    check(compute(call, pass, automatic));
    EXPECT_EQ(last_engine(automatic), other);
}

// Does the same for both passes. Rows have the problem's layout.
void expect_instead(annulus_engine other, const Problem &problem, const std::string &reason) {
    const Inputs inputs = random_inputs(problem, 1);
    Call call(problem, inputs, device_memory(), true);
    for (const annulus_pass pass : passes)
        expect_instead(other, problem, call, pass, reason);
    expect_agreement(problem, inputs, call.results(), run_exact(problem, inputs));
}

// The problems that the tests leave out because the engine refuses them.
class Refused : public testing::TestWithParam<NamedProblem> {};

TEST_P(Refused, IsDoneByGemm) {
    expect_instead(ANNULUS_ENGINE_GEMM, GetParam().problem, "engine fused cannot do this");
}

std::vector<NamedProblem> refused_problems() {
    std::vector<NamedProblem> problems = named_problems();
    for (const NamedProblem &named : rule_combinations())
        problems.push_back(named);
    std::erase_if(problems, [](const NamedProblem &named) { return !subject().refusal_of(named.problem); });
    return with_dtypes(up_to(small_work, problems), {ANNULUS_BFLOAT16});
}

INSTANTIATE_TEST_SUITE_P(Fused, Refused, testing::ValuesIn(refused_problems()), name_of_problem);

TEST(Auto, IsGemmWithoutAPositiveScale) {
    for (const double scale : {0.0, -0.25}) {
        Problem problem = small_problem();
        problem.scale = scale;
        expect_instead(ANNULUS_ENGINE_GEMM, problem, "scale");
    }
}

TEST(Auto, IsGemmWhereKeysCountOnceInSeveralGrids) {
    Problem problem = small_problem();
    problem.keys_once = true;
    const BranchSpec near = {.segment = 16}, two = {.dilation = 2};
    const BranchSpec three = {.dilation = 3}, curve = {.dilation = 4, .order = ANNULUS_ORDER_HILBERT};
    const BranchSpec every = {.segment = 16, .dilation = 4, .query = ANNULUS_QUERY_EVERY};
    for (const BranchSpec &other : {three, curve, every}) {
        problem.branches = {near, two, other};
        expect_instead(ANNULUS_ENGINE_GEMM, problem, "it counts keys once for up to 8 branches");
    }
    problem.branches.assign(9, near);
    expect_instead(ANNULUS_ENGINE_GEMM, problem, "it counts keys once for up to 8 branches");
}

TEST(Auto, IsMmaForFloat32) {
    Problem problem = small_problem();
    problem.dtype = ANNULUS_FLOAT32;
    expect_instead(ANNULUS_ENGINE_MMA, problem, "bfloat16");
}

TEST(Auto, IsGemmForRowsWithGaps) {
    Problem problem = small_problem();
    problem.layout = Layout::gaps;
    expect_instead(ANNULUS_ENGINE_GEMM, problem, "16 bytes");
}

// One tensor after the other is not aligned.
TEST(Auto, IsGemmForOneTensorThatIsNotAligned) {
    using Arguments = Call::Arguments;
    const std::vector<TensorOfCall> forward_tensors = {
        {"q", &Arguments::q}, {"k", &Arguments::k}, {"v", &Arguments::v}, {"out", &Arguments::out}};
    std::vector<TensorOfCall> backward_tensors = forward_tensors;
    for (const TensorOfCall &more : {TensorOfCall{"d_out", &Arguments::d_out},
                                     {"d_q", &Arguments::d_q},
                                     {"d_k", &Arguments::d_k},
                                     {"d_v", &Arguments::d_v}})
        backward_tensors.push_back(more);
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    const Context automatic = context_for(problem, ANNULUS_ENGINE_AUTO);
    for (const annulus_pass pass : passes)
        for (const auto &[name, tensor] : pass == ANNULUS_PASS_FORWARD ? forward_tensors : backward_tensors) {
            SCOPED_TRACE(testing::Message() << name << " of pass " << pass);
            Call odd(problem, inputs, device_memory(), false), call(problem, inputs, device_memory(), true);
            std::swap(odd.arguments.*tensor, call.arguments.*tensor);
            check(call.forward(automatic.get())); // backward needs its results
            expect_instead(ANNULUS_ENGINE_GEMM, problem, call, pass, "16 bytes");
        }
}

// The tensors that a pass copies by tensor maps: in backward all inputs but O.
TEST(Auto, IsMmaForOneEntryForTheBatch) {
    struct Input {
        const char *name;
        annulus_tensor Call::Arguments::*tensor;
        std::vector<double> Inputs::*values;
        bool is_forward_input;
    };
    Problem problem = small_problem();
    problem.batch = 3;
    for (const Input &input : {Input{"q", &Call::Arguments::q, &Inputs::q, false},
                               {"k", &Call::Arguments::k, &Inputs::k, true},
                               {"v", &Call::Arguments::v, &Inputs::v, true},
                               {"d_out", &Call::Arguments::d_out, &Inputs::d_out, false}}) {
        SCOPED_TRACE(input.name);
        Inputs inputs = random_inputs(problem, 1);
        std::vector<double> &values = inputs.*input.values;
        const std::size_t entry = values.size() / 3;
        for (std::size_t i = entry; i < values.size(); ++i)
            values[i] = values[i - entry];
        Call call(problem, inputs, device_memory(), true);
        (call.arguments.*input.tensor).stride[0] = 0;
        if (input.is_forward_input)
            expect_instead(ANNULUS_ENGINE_MMA, problem, call, ANNULUS_PASS_FORWARD, "stride");
        else
            check(call.forward(context_for(problem, ANNULUS_ENGINE_FUSED).get()));
        expect_instead(ANNULUS_ENGINE_MMA, problem, call, ANNULUS_PASS_BACKWARD, "stride");
        expect_agreement(problem, inputs, call.results(), run_exact(problem, inputs));
    }
}

TEST(Auto, IsFusedWhereverStatisticsLie) {
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    for (const auto tensor : {&Call::Arguments::lse, &Call::Arguments::d_lse}) {
        Call odd(problem, inputs, device_memory(), false), call(problem, inputs, device_memory(), true);
        std::swap(odd.arguments.*tensor, call.arguments.*tensor);
        const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
        for (const annulus_pass pass : passes) {
            check(compute(call, pass, context));
            EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        }
        Results results = call.results();
        if (tensor == &Call::Arguments::lse)
            results.lse = odd.results(ANNULUS_PASS_FORWARD).lse;
        expect_agreement(problem, inputs, results, run_exact(problem, inputs));
    }
}

// The announced workspace is enough for gemm, which takes the rows that fused refuses. If the rows are known to suit
// fused, it is enough for fused.
TEST(Auto, AnnouncesWorkspaceForAllTensors) {
    const Problem problem = small_problem();
    annulus_problem sizes = sizes_of(problem);
    for (const annulus_pass pass : passes) {
        SCOPED_TRACE(testing::Message() << "pass " << pass);
        const auto workspace_size = [&](annulus_engine engine, std::int64_t row_alignment) {
            std::uint64_t bytes = 0;
            sizes.row_alignment = row_alignment;
            check(annulus_workspace_size(context_for(problem, engine).get(), &sizes, pass, &bytes));
            return bytes;
        };
        const std::uint64_t fused_bytes = workspace_size(ANNULUS_ENGINE_FUSED, 0);
        const std::uint64_t gemm_bytes = workspace_size(ANNULUS_ENGINE_GEMM, 0);
        ASSERT_LT(fused_bytes, gemm_bytes);
        for (const std::int64_t row_alignment : {0, 1, 8})
            EXPECT_EQ(workspace_size(ANNULUS_ENGINE_AUTO, row_alignment), gemm_bytes);
        for (const std::int64_t row_alignment : {16, 4096})
            EXPECT_EQ(workspace_size(ANNULUS_ENGINE_AUTO, row_alignment), fused_bytes);

        const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
        const Allocation workspace = allocate(device_memory(), gemm_bytes);
        check(annulus_context_set_workspace(context.get(), workspace.get(), std::max<std::uint64_t>(fused_bytes, 1)));
        const Call odd(problem, random_inputs(problem, 1), device_memory(), false);
        expect_refused(compute(odd, pass, context), ANNULUS_ERROR_WORKSPACE, std::to_string(gemm_bytes));
        const Call call(problem, random_inputs(problem, 1), device_memory(), true);
        check(compute(call, pass, context));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        check(annulus_context_set_workspace(context.get(), workspace.get(), gemm_bytes));
        check(compute(odd, pass, context));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_GEMM);
    }
}

// Along the Hilbert curve a single branch needs the permutations of a whole segment and of a shorter last one, but no
// copies of rows.
TEST(Workspace, AlongACurveIsAnOrderMore) {
    for (const bool causal : {false, true})
        for (const annulus_pass pass : passes) {
            SCOPED_TRACE(testing::Message() << "causal " << causal << " pass " << pass);
            const auto workspace_size = [&](annulus_order order) {
                const Problem problem = {.length = 100'000,
                                         .heads = 8,
                                         .dim = 64,
                                         .branches = {{.segment = 8192, .dilation = 4, .order = order}},
                                         .causal = causal,
                                         .dtype = ANNULUS_BFLOAT16};
                const annulus_problem sizes = sizes_of(problem);
                std::uint64_t bytes = 0;
                check(annulus_workspace_size(context_for(problem, ANNULUS_ENGINE_FUSED).get(), &sizes, pass, &bytes));
                return bytes;
            };
            const std::uint64_t along_line = workspace_size(ANNULUS_ORDER_LINEAR);
            const std::uint64_t along_curve = workspace_size(ANNULUS_ORDER_HILBERT);
            EXPECT_GT(along_curve, along_line);
            EXPECT_LE(along_curve, along_line + 128 * 1024);
        }
}

// The limit is too small for sums in float32: of O if there are two grids, of dK and dV if heads share keys.
TEST(Auto, IsGemmWhereTheLimitIsTooSmall) {
    constexpr std::uint64_t limit = std::uint64_t{64} << 20;
    const Problem two_passes = {.length = 100'000,
                                .heads = 8,
                                .dim = 64,
                                .branches = {{.segment = 1024, .dilation = 2}, {.segment = 4096, .dilation = 3}},
                                .dtype = ANNULUS_BFLOAT16};
    Problem grouped = two_passes;
    grouped.kv_heads = 2;
    grouped.branches = {{.segment = 1024}, {.segment = 4096, .dilation = 2}};
    const auto expect_gemm = [&](const Problem &problem, annulus_pass pass) {
        const annulus_problem sizes = sizes_of(problem);
        RunOptions options = subject();
        std::uint64_t bytes = 0;
        const auto workspace_size = [&] {
            const Context context = make_context(make_config(problem, options).get(), 0, device_memory());
            return annulus_workspace_size(context.get(), &sizes, pass, &bytes);
        };
        check(workspace_size());
        EXPECT_GT(bytes, limit);
        options.workspace_limit = limit;
        expect_refused(workspace_size(), ANNULUS_ERROR_WORKSPACE, std::to_string(bytes));
        EXPECT_EQ(annulus_last_error_bytes(), bytes);
        options.engine = ANNULUS_ENGINE_AUTO;
        check(workspace_size());
        EXPECT_LE(bytes, limit);
    };
    expect_gemm(two_passes, ANNULUS_PASS_FORWARD);
    expect_gemm(grouped, ANNULUS_PASS_BACKWARD);
}

TEST(Forced, HasALongestSequence) {
    Problem problem = small_problem();
    problem.length = std::int64_t{1} << 31;
    const annulus_problem sizes = sizes_of(problem);
    for (const annulus_pass pass : passes) {
        std::uint64_t bytes = 0;
        expect_refused(annulus_workspace_size(context_for(problem, ANNULUS_ENGINE_FUSED).get(), &sizes, pass, &bytes),
                       ANNULUS_ERROR_UNSUPPORTED, "fused");
        check(annulus_workspace_size(context_for(problem, ANNULUS_ENGINE_AUTO).get(), &sizes, pass, &bytes));
    }
}

TEST(Refusal, IsOfNoWindowsAndNoGlobalPositions) {
    Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    Call call(problem, inputs, device_memory(), true);
    for (const annulus_pass pass : passes) {
        for (const BranchSpec &branch : {global_spec(0, 2, true), window_spec(9, 0)}) {
            problem.branches[1] = branch;
            for (const annulus_engine engine : {ANNULUS_ENGINE_GEMM, ANNULUS_ENGINE_FUSED, ANNULUS_ENGINE_MMA})
                check(compute(call, pass, context_for(problem, engine)));
            const Context any = context_for(problem, ANNULUS_ENGINE_AUTO);
            check(compute(call, pass, any));
            EXPECT_EQ(last_engine(any), ANNULUS_ENGINE_FUSED);
        }
    }
}

TEST(Refusal, IsOfTwoGlobalBranchesWhoseKeysCountOnce) {
    Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    Call call(problem, inputs, device_memory(), true);
    problem.branches = {global_spec(0, 2), global_spec(1, 3), window_spec(9, 0)};
    problem.keys_once = true;
    for (const annulus_pass pass : passes) {
        for (const annulus_engine engine : {ANNULUS_ENGINE_FUSED, ANNULUS_ENGINE_MMA})
            expect_refused(compute(call, pass, context_for(problem, engine)), ANNULUS_ERROR_UNSUPPORTED,
                           "beside global positions");
        const Context any = context_for(problem, ANNULUS_ENGINE_AUTO);
        check(compute(call, pass, any));
        EXPECT_EQ(last_engine(any), ANNULUS_ENGINE_GEMM);
    }
}

} // namespace
} // namespace annulus::test
