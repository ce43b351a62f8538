// SPDX-License-Identifier: Apache-2.0
// What the tests of any engine do not ask of `fused`: sizes around its tiles, repeats, who serves which tensors,
// graphs, patterns that take it several passes, and numbers that are none in rows beside the keys of a tile.
#include "cuda/cuda_place.hpp"
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {

void PrintTo(const NamedProblem &named, std::ostream *out) {
    *out << named.problem;
}

namespace {

RunOptions forward_only() {
    RunOptions options = subject();
    options.backward = false;
    return options;
}

CudaPlace &place() {
    return static_cast<CudaPlace &>(*subject().place);
}

Context context_for(const Problem &problem, annulus_engine engine) {
    RunOptions options = subject();
    options.engine = engine;
    return make_context(make_config(problem, options).get(), 0, place());
}

annulus_engine last_engine(const Context &context) {
    annulus_engine engine = ANNULUS_ENGINE_REFERENCE;
    check(annulus_context_last_engine(context.get(), &engine));
    return engine;
}

void expect_refused(annulus_status status, annulus_status wanted, const std::string &words) {
    EXPECT_EQ(annulus_status_name(status), std::string(annulus_status_name(wanted)));
    const std::string message = annulus_last_error();
    EXPECT_NE(message.find(words), std::string::npos) << message << " does not say " << words;
}

std::string name_of_problem(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

// ---- Sizes

class Sizes : public testing::TestWithParam<std::tuple<std::int64_t, std::int32_t>> {};

TEST_P(Sizes, AgreeWithReference) {
    const auto [length, dim] = GetParam();
    for (const annulus_dtype dtype : subject_dtypes())
        for (const bool causal : {false, true}) {
            const Problem problem = {.length = length,
                                     .heads = 3,
                                     .dim = dim,
                                     .branches = {{.segment = 150}, {.dilation = 3}},
                                     .causal = causal,
                                     .dtype = dtype};
            SCOPED_TRACE(testing::Message() << problem);
            const Inputs inputs = random_inputs(problem, 1);
            expect_agreement(problem, inputs, run(problem, inputs, subject()), run_exact(problem, inputs));
        }
}

std::string name_of_sizes(const testing::TestParamInfo<Sizes::ParamType> &info) {
    const auto [length, dim] = info.param;
    return "length_" + std::to_string(length) + "_dim_" + std::to_string(dim);
}

INSTANTIATE_TEST_SUITE_P(Fused, Sizes,
                         testing::Combine(testing::Values(1, 7, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 383),
                                          testing::Values(8, 16, 40, 64, 72, 128, 136, 200, 256)),
                         name_of_sizes);

// ---- Patterns

std::vector<NamedProblem> patterns() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    constexpr auto interleave = ANNULUS_PHASE_INTERLEAVE;
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    std::vector<BranchSpec> twelve;
    for (int i = 0; i < 12; ++i)
        twelve.push_back(
            {.segment = 16 << (i / 2), .dilation = 1 << (i / 2), .phase = i % 2 ? interleave : ANNULUS_PHASE_BLOCK});
    std::vector<BranchSpec> forty; // of one key each, and of many
    for (int i = 0; i < 40; ++i)
        forty.push_back({.segment = 3 + 7 * i, .dilation = 1 + i % 9});
    const std::vector<BranchSpec> primes = {
        {.segment = 100, .dilation = 2}, {.segment = 210, .dilation = 3}, {.dilation = 5}};
    std::vector<BranchSpec> primes_of_residues = primes, primes_of_every = primes;
    for (std::size_t i = 0; i < primes.size(); ++i) {
        primes_of_residues[i].query = residue;
        primes_of_every[i].query = every;
    }
    const std::vector<NamedProblem> problems = {
        {"twelve_branches", {.length = 700, .heads = 6, .dim = 64, .branches = twelve}},
        {"forty_branches", {.length = 300, .heads = 4, .kv_heads = 2, .dim = 16, .branches = forty}},
        {"dilations_2_3_5", {.length = 431, .heads = 5, .dim = 64, .branches = primes}},
        {"dilations_2_3_5_residue", {.length = 431, .heads = 2, .dim = 64, .branches = primes_of_residues}},
        {"dilations_2_3_5_every", {.length = 431, .heads = 5, .dim = 64, .branches = primes_of_every}},
        {"dilations_4_6",
         {.length = 500, .heads = 4, .dim = 128, .branches = {{.segment = 240, .dilation = 4}, {.dilation = 6}}}},
        {"segments_that_do_not_nest",
         {.length = 997,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 130}, {.segment = 170, .dilation = 2}, {.segment = 500, .dilation = 4}}}},
        {"nested_with_repeated_keys",
         {.length = 1024,
          .heads = 8,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.segment = 128, .dilation = 2},
                       {.segment = 256, .dilation = 4},
                       {.segment = 512, .dilation = 8},
                       {.dilation = 16}}}},
        {"hilbert_and_linear",
         {.length = 18 * 24,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.dilation = 4, .order = hilbert, .width = 24},
                       {.segment = 216, .dilation = 2}}}},
        {"hilbert_residue_and_linear_every",
         {.length = 18 * 24,
          .heads = 4,
          .kv_heads = 2,
          .dim = 40,
          .branches = {{.dilation = 3, .query = residue, .order = hilbert},
                       {.segment = 144, .dilation = 4, .query = every}}}},
        {"all_query_rules",
         {.length = 389,
          .heads = 6,
          .dim = 64,
          .branches = {{.segment = 128},
                       {.segment = 200, .dilation = 4, .query = residue},
                       {.dilation = 8, .query = every}}}},
        {"head_ranges",
         {.length = 300,
          .heads = 7,
          .dim = 64,
          .branches = {{.segment = 64, .first_head = 2, .head_count = 3},
                       {.segment = 150, .dilation = 4, .head_count = 5},
                       {.dilation = 2, .first_head = 6, .head_count = 1}}}},
        {"window",
         {.batch = 2,
          .length = 700,
          .heads = 4,
          .kv_heads = 1,
          .dim = 64,
          .branches = {{.segment = 300}, {.dilation = 4}},
          .window = QueryWindow{129, 321}}},
    };
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems) {
        all.push_back(named);
        all.push_back({named.name + "_causal", named.problem});
        all.back().problem.causal = true;
        all.push_back({named.name + "_zero_keys", named.problem});
        all.back().problem.zero_keys = true;
    }
    std::erase_if(all, [](const NamedProblem &named) { return subject().refusal_of(named.problem); });
    return with_dtypes(all, subject_dtypes());
}

class Patterns : public testing::TestWithParam<NamedProblem> {};

TEST_P(Patterns, AgreeWithReference) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    expect_agreement(problem, inputs, run(problem, inputs, subject()), run_exact(problem, inputs));
}

INSTANTIATE_TEST_SUITE_P(Fused, Patterns, testing::ValuesIn(patterns()), name_of_problem);

// ---- Repeats

class Repeats : public testing::TestWithParam<std::tuple<annulus_dtype, std::int32_t, bool>> {};

TEST_P(Repeats, AreBitEqual) {
    const auto [dtype, dim, causal] = GetParam();
    const Problem problem = {.length = 8200,
                             .heads = 4,
                             .dim = dim,
                             .branches = {{.segment = 1024},
                                          {.segment = 2048, .dilation = 2},
                                          {.segment = 4096, .dilation = 4},
                                          {.segment = 8192, .dilation = 8}},
                             .causal = causal,
                             .dtype = dtype};
    const Inputs inputs = random_inputs(problem, 1);
    const Context context = context_for(problem, ANNULUS_ENGINE_FUSED);
    Call call(problem, inputs, place(), true);
    std::vector<unsigned char> out(problem.q_size() * bytes_of(dtype)), lse(problem.lse_size() * sizeof(float));
    std::vector<unsigned char> first_out, first_lse;
    for (int i = 0; i < 100; ++i) {
        place().fill(call.arguments.out.data, 0xFF, out.size());
        place().fill(call.arguments.lse.data, 0xFF, lse.size());
        check(call.forward(context.get()));
        place().download(out.data(), call.arguments.out.data, out.size());
        place().download(lse.data(), call.arguments.lse.data, lse.size());
        if (i == 0) {
            first_out = out;
            first_lse = lse;
        }
        ASSERT_TRUE(out == first_out) << "O of repeat " << i;
        ASSERT_TRUE(lse == first_lse) << "LSE of repeat " << i;
    }
    const auto on_cpu = [&](annulus_dtype in) {
        Problem same = problem;
        same.dtype = in;
        return run(same, inputs, {.engine = ANNULUS_ENGINE_CPU, .threads = 0, .backward = false});
    };
    expect_agreement(problem, call.results(ANNULUS_PASS_FORWARD), on_cpu(ANNULUS_FLOAT64), on_cpu(dtype));
}

std::string name_of_repeats(const testing::TestParamInfo<Repeats::ParamType> &info) {
    const auto [dtype, dim, causal] = info.param;
    return std::string(annulus_dtype_name(dtype)) + "_dim_" + std::to_string(dim) + (causal ? "_causal" : "");
}

INSTANTIATE_TEST_SUITE_P(Fused, Repeats,
                         testing::Combine(testing::ValuesIn(subject_dtypes()), testing::Values(64, 128),
                                          testing::Bool()),
                         name_of_repeats);

// ---- Who serves a call

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
        Call call(problem, inputs, place(), true);
        check(call.forward(context.get()));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        check(call.backward(context.get()));
        EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
        expect_agreement(problem, inputs, call.results(), run_exact(problem, inputs));
    }
}

// What `fused` refuses, and `auto` has done by `gemm`.
void expect_gemm_instead(const Problem &problem, Call &call, const Inputs &inputs, const std::string &reason) {
    const Context forced = context_for(problem, ANNULUS_ENGINE_FUSED);
    expect_refused(call.forward(forced.get()), ANNULUS_ERROR_UNSUPPORTED, reason);
    const Results untouched = call.results(ANNULUS_PASS_FORWARD);
    for (const std::vector<double> *values : {&untouched.out, &untouched.lse})
        EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double x) { return std::isnan(x); }));

    const Context automatic = context_for(problem, ANNULUS_ENGINE_AUTO);
    check(call.forward(automatic.get()));
    EXPECT_EQ(last_engine(automatic), ANNULUS_ENGINE_GEMM);
    expect_agreement(problem, inputs, call.results(ANNULUS_PASS_FORWARD), run_exact(problem, inputs, false));
}

// With rows as the problem's layout has them.
void expect_gemm_instead(const Problem &problem, const std::string &reason) {
    const Inputs inputs = random_inputs(problem, 1);
    Call call(problem, inputs, place(), true);
    expect_gemm_instead(problem, call, inputs, reason);
}

// Whatever problem of the table the tests skip for the engine's sake.
class Refused : public testing::TestWithParam<NamedProblem> {};

TEST_P(Refused, IsDoneByGemm) {
    expect_gemm_instead(GetParam().problem, "engine fused cannot do this");
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
        expect_gemm_instead(problem, "scale");
    }
}

TEST(Auto, IsGemmForFloat32) {
    Problem problem = small_problem();
    problem.dtype = ANNULUS_FLOAT32;
    expect_gemm_instead(problem, "bfloat16");
}

TEST(Auto, IsGemmForRowsWithGaps) {
    Problem problem = small_problem();
    problem.layout = Layout::gaps;
    expect_gemm_instead(problem, "16 bytes");
}

// Each of the tensors in its turn.
TEST(Auto, IsGemmForOneTensorThatIsNotAligned) {
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    for (const auto tensor : {&Call::Arguments::q, &Call::Arguments::k, &Call::Arguments::v, &Call::Arguments::out}) {
        Call odd(problem, inputs, place(), false), call(problem, inputs, place(), true);
        std::swap(odd.arguments.*tensor, call.arguments.*tensor);
        const Context forced = context_for(problem, ANNULUS_ENGINE_FUSED);
        expect_refused(call.forward(forced.get()), ANNULUS_ERROR_UNSUPPORTED, "16 bytes");
        const Context automatic = context_for(problem, ANNULUS_ENGINE_AUTO);
        check(call.forward(automatic.get()));
        EXPECT_EQ(last_engine(automatic), ANNULUS_ENGINE_GEMM);
    }
}

TEST(Auto, IsGemmForOneEntryForTheBatch) {
    Problem problem = small_problem();
    problem.batch = 3;
    Inputs inputs = random_inputs(problem, 1);
    const std::size_t entry = inputs.k.size() / 3;
    for (std::size_t i = entry; i < inputs.k.size(); ++i)
        inputs.k[i] = inputs.k[i - entry];
    Call call(problem, inputs, place(), true);
    call.arguments.k.stride[0] = 0;
    expect_gemm_instead(problem, call, inputs, "stride");
}

TEST(Auto, IsFusedWhereverLseLies) {
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    Call odd(problem, inputs, place(), false), call(problem, inputs, place(), true);
    std::swap(odd.arguments.lse, call.arguments.lse);
    const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
    check(call.forward(context.get()));
    EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_FUSED);
    const Results results = {call.results(ANNULUS_PASS_FORWARD).out, odd.results(ANNULUS_PASS_FORWARD).lse, {}, {}, {}};
    expect_agreement(problem, inputs, results, run_exact(problem, inputs, false));
}

// What was announced for the problem is fused's; the message says what gemm needs.
TEST(Auto, SaysWhatWorkspaceOtherTensorsNeed) {
    const Problem problem = small_problem();
    const annulus_problem sizes = sizes_of(problem);
    const auto workspace_size = [&](annulus_engine engine) {
        std::uint64_t bytes = 0;
        check(annulus_workspace_size(context_for(problem, engine).get(), &sizes, ANNULUS_PASS_FORWARD, &bytes));
        return bytes;
    };
    const std::uint64_t announced = workspace_size(ANNULUS_ENGINE_AUTO), of_gemm = workspace_size(ANNULUS_ENGINE_GEMM);
    EXPECT_EQ(announced, workspace_size(ANNULUS_ENGINE_FUSED));
    ASSERT_LT(announced, of_gemm);
    const Context context = context_for(problem, ANNULUS_ENGINE_AUTO);
    const PlaceMemory workspace = allocate(place(), of_gemm);
    check(annulus_context_set_workspace(context.get(), workspace.get(), std::max<std::uint64_t>(announced, 1)));
    Call odd(problem, random_inputs(problem, 1), place(), false);
    expect_refused(odd.forward(context.get()), ANNULUS_ERROR_MEMORY, std::to_string(of_gemm));
    check(annulus_context_set_workspace(context.get(), workspace.get(), of_gemm));
    check(odd.forward(context.get()));
    EXPECT_EQ(last_engine(context), ANNULUS_ENGINE_GEMM);
}

TEST(Auto, IsGemmWhereTheLimitIsTooSmall) {
    const Problem problem = {.length = 100'000,
                             .heads = 8,
                             .dim = 64,
                             .branches = {{.segment = 1024, .dilation = 2}, {.segment = 4096, .dilation = 3}},
                             .dtype = ANNULUS_BFLOAT16};
    const annulus_problem sizes = sizes_of(problem);
    constexpr std::uint64_t limit = std::uint64_t{64} << 20; // less than the sums of two passes
    RunOptions options = subject();
    std::uint64_t bytes = 0;
    const auto workspace_size = [&] {
        const Context context = make_context(make_config(problem, options).get(), 0, place());
        return annulus_workspace_size(context.get(), &sizes, ANNULUS_PASS_FORWARD, &bytes);
    };
    check(workspace_size());
    EXPECT_GT(bytes, limit);
    options.workspace_limit = limit;
    expect_refused(workspace_size(), ANNULUS_ERROR_MEMORY, std::to_string(bytes));
    options.engine = ANNULUS_ENGINE_AUTO;
    check(workspace_size());
    EXPECT_LE(bytes, limit);
}

TEST(Forced, HasALongestSequence) {
    Problem problem = small_problem();
    problem.length = std::int64_t{1} << 31;
    const annulus_problem sizes = sizes_of(problem);
    std::uint64_t bytes = 0;
    expect_refused(
        annulus_workspace_size(context_for(problem, ANNULUS_ENGINE_FUSED).get(), &sizes, ANNULUS_PASS_FORWARD, &bytes),
        ANNULUS_ERROR_UNSUPPORTED, "fused");
    check(
        annulus_workspace_size(context_for(problem, ANNULUS_ENGINE_AUTO).get(), &sizes, ANNULUS_PASS_FORWARD, &bytes));
}

// ---- Graphs

class Graph : public testing::TestWithParam<std::tuple<NamedProblem, bool>> {};

TEST_P(Graph, CapturedOnceReplaysOnNewData) {
    const auto &[named, own_workspace] = GetParam();
    const Problem &problem = named.problem;
    CudaPlace own_place;
    RunOptions options = forward_only();
    options.place = &own_place;
    std::vector<Inputs> inputs;
    std::vector<Results> wanted;
    for (const std::uint64_t seed : {1, 2, 3}) {
        inputs.push_back(random_inputs(problem, seed));
        wanted.push_back(run(problem, inputs.back(), options));
    }

    const Context context = make_context(make_config(problem, options).get(), 0, own_place);
    PlaceMemory workspace;
    if (own_workspace) {
        const annulus_problem sizes = sizes_of(problem);
        std::uint64_t bytes = 0;
        check(annulus_workspace_size(context.get(), &sizes, ANNULUS_PASS_FORWARD, &bytes));
        workspace = allocate(own_place, bytes + 1);
        own_place.fill(workspace.get(), 0xFF, bytes + 1);
        check(annulus_context_set_workspace(context.get(), workspace.get(), bytes + 1));
    }
    Call call(problem, inputs[0], own_place, true);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check_cuda(cudaStreamBeginCapture(own_place.cuda_stream(), cudaStreamCaptureModeGlobal));
    const annulus_status status = call.forward(context.get());
    const cudaError_t captured = cudaStreamEndCapture(own_place.cuda_stream(), &graph);
    check(status);
    check_cuda(captured);
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "replay " << i);
        call.reset(inputs[i]);
        check_cuda(cudaGraphLaunch(replay, own_place.cuda_stream()));
        expect_identical(call.results(ANNULUS_PASS_FORWARD), wanted[i]);
    }
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
}

std::vector<NamedProblem> captured_problems() {
    std::vector<NamedProblem> problems;
    for (const NamedProblem &named : patterns())
        if (named.problem.dtype == ANNULUS_BFLOAT16 &&
            (named.name.starts_with("twelve_branches_") || named.name.starts_with("dilations_2_3_5_causal") ||
             named.name.starts_with("hilbert_and_linear_")))
            problems.push_back(named);
    return problems;
}

std::string name_of_graph(const testing::TestParamInfo<Graph::ParamType> &info) {
    const auto &[named, own_workspace] = info.param;
    return named.name + (own_workspace ? "_workspace" : "_pool");
}

INSTANTIATE_TEST_SUITE_P(Fused, Graph, testing::Combine(testing::ValuesIn(captured_problems()), testing::Bool()),
                         name_of_graph);

// ---- NaN and infinities

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::vector<NamedProblem> ragged_problems() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    const std::vector<NamedProblem> problems = {
        {"segments", {.length = 391, .dim = 64, .branches = {{.segment = 150}}}},
        {"dilated", {.length = 391, .heads = 3, .dim = 64, .branches = {{.segment = 260, .dilation = 3}}}},
        {"every",
         {.length = 391, .heads = 3, .dim = 40, .branches = {{.segment = 270, .dilation = 3, .query = every}}}},
        {"residue", {.length = 391, .dim = 128, .branches = {{.segment = 300, .dilation = 2, .query = residue}}}},
        {"branches",
         {.length = 391,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 70}, {.segment = 280, .dilation = 4}}}},
        {"hilbert",
         {.length = 384, .dim = 64, .branches = {{.segment = 160, .dilation = 2, .order = ANNULUS_ORDER_HILBERT}}}},
    };
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems)
        for (const bool causal : {false, true})
            for (const bool window : {false, true}) {
                all.push_back(named);
                all.back().problem.causal = causal;
                if (window)
                    all.back().problem.window = QueryWindow{77, 165};
                all.back().name += causal ? "_causal" : "";
                all.back().name += window ? "_window" : "";
            }
    std::erase_if(all, [](const NamedProblem &named) { return subject().refusal_of(named.problem); });
    return with_dtypes(all, {ANNULUS_BFLOAT16});
}

// Computed by one rank or by three on one GPU.
class Nonfinite : public testing::TestWithParam<std::tuple<NamedProblem, int>> {
  protected:
    const Problem &problem_ = std::get<0>(GetParam()).problem;
    const int ranks_ = std::get<1>(GetParam());
    const Mask mask_{problem_};
    const Inputs clean_inputs_ = random_inputs(problem_, 1);
    const Results clean_ = results_of(clean_inputs_);

    Results results_of(const Inputs &inputs) const {
        if (ranks_ == 1)
            return run(problem_, inputs, forward_only());
        static CudaPlace places[3] = {CudaPlace(CudaPlace::Order::own_stream), CudaPlace(CudaPlace::Order::own_stream),
                                      CudaPlace(CudaPlace::Order::own_stream)};
        return run_ranks(problem_, inputs,
                         {.lengths = even_lengths(problem_.length, ranks_),
                          .run = forward_only(),
                          .places = {&places[0], &places[1], &places[2]}});
    }

    void set_rows(std::vector<double> &values, std::int64_t position, double value) const {
        const std::int64_t row = problem_.kv() * problem_.dim;
        std::fill_n(values.begin() + position * row, row, value);
    }

    bool attends(std::int64_t query, std::int32_t head, std::int64_t key) const {
        const std::vector<std::int64_t> keys = mask_.keys(query, head).positions;
        return std::find(keys.begin(), keys.end(), key) != keys.end();
    }

    // Queries for which reached(position, head) does not hold have the clean results, the others NaN where that went
    // in.
    template <class Reached> void expect_clean_but(const Results &got, const Reached &reached, double value) const {
        const double unit = rounding_unit(problem_.dtype);
        const auto near = [&](double a, double b) { return a == b || std::fabs(a - b) <= unit * (1 + std::fabs(b)); };
        for (std::int64_t i = 0; i < problem_.query_length(); ++i)
            for (std::int32_t h = 0; h < problem_.heads; ++h) {
                const std::int64_t row = (i * problem_.heads + h) * problem_.dim;
                const std::int64_t statistic = h * problem_.query_length() + i;
                const bool is_reached = reached(problem_.query_start() + i, h);
                for (std::int64_t d = 0; d < problem_.dim; ++d) {
                    const double out = got.out[row + d];
                    ASSERT_TRUE(is_reached || near(out, clean_.out[row + d])) << "row " << i << ", head " << h;
                    ASSERT_TRUE(!is_reached || std::isnan(out) || !std::isnan(value)) << "row " << i << ", head " << h;
                }
                ASSERT_TRUE(is_reached || near(got.lse[statistic], clean_.lse[statistic]))
                    << "row " << i << ", head " << h;
            }
    }
};

TEST_P(Nonfinite, RowsReachTheirQueriesAndNoOthers) {
    for (const std::int64_t position : {0, 63, 64, 76, 77, 127, 128, 149, 150, 241, 242, 259, 260, 299, 300, 383})
        for (const double value : {nan, infinity, -infinity})
            for (const auto rows : {&Inputs::k, &Inputs::v}) {
                SCOPED_TRACE(testing::Message() << value << " in the rows of position " << position << " of "
                                                << (rows == &Inputs::k ? "K" : "V"));
                Inputs inputs = clean_inputs_;
                set_rows(inputs.*rows, position, value);
                expect_clean_but(
                    results_of(inputs),
                    [&](std::int64_t query, std::int32_t head) { return attends(query, head, position); }, value);
            }
}

// All that two queries do not attend to.
TEST_P(Nonfinite, RowsThatAreNoKeysReachNothing) {
    std::vector<bool> is_key(problem_.length);
    const std::int64_t first = problem_.query_start() + problem_.query_length() / 3;
    for (const std::int64_t query : {first, first + 1})
        for (std::int32_t h = 0; h < problem_.heads; ++h)
            for (const std::int64_t key : mask_.keys(query, h).positions)
                is_key[static_cast<std::size_t>(key)] = true;
    for (const double value : {nan, infinity, -infinity}) {
        SCOPED_TRACE(value);
        Inputs inputs = clean_inputs_;
        for (std::int64_t m = 0; m < problem_.length; ++m)
            if (!is_key[static_cast<std::size_t>(m)]) {
                set_rows(inputs.k, m, value);
                set_rows(inputs.v, m, value);
            }
        expect_clean_but(
            results_of(inputs), [&](std::int64_t query, std::int32_t) { return query != first && query != first + 1; },
            infinity);
    }
}

// Shards cut segments, which the engine does not take along a curve, and have no windows.
std::vector<NamedProblem> ragged_problems_for_ranks() {
    std::vector<NamedProblem> problems = ragged_problems();
    std::erase_if(problems, [](const NamedProblem &named) {
        return named.problem.window || named.problem.branches[0].order == ANNULUS_ORDER_HILBERT;
    });
    return problems;
}

std::string name_of_nonfinite(const testing::TestParamInfo<Nonfinite::ParamType> &info) {
    return std::get<0>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Fused, Nonfinite, testing::Combine(testing::ValuesIn(ragged_problems()), testing::Values(1)),
                         name_of_nonfinite);
INSTANTIATE_TEST_SUITE_P(Ranks, Nonfinite,
                         testing::Combine(testing::ValuesIn(ragged_problems_for_ranks()), testing::Values(3)),
                         name_of_nonfinite);

} // namespace
} // namespace annulus::test
