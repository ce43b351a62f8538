// SPDX-License-Identifier: Apache-2.0
// Launches the engine again: a hundred calls give the same bits, and a CUDA graph computes new data.
#include "cuda/fused/calls.hpp"
#include "cuda/fused/problems.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

// ---- Repeats

constexpr TensorOfCall outputs[] = {{"out", &Call::Arguments::out},
                                    {"lse", &Call::Arguments::lse},
                                    {"d_q", &Call::Arguments::d_q},
                                    {"d_k", &Call::Arguments::d_k},
                                    {"d_v", &Call::Arguments::d_v}};

class Repeats : public testing::TestWithParam<NamedProblem> {};

std::size_t contiguous_bytes(const annulus_tensor &tensor) {
    std::size_t bytes = bytes_of(tensor.dtype);
    for (int i = 0; i < tensor.ndim; ++i)
        bytes *= static_cast<std::size_t>(tensor.shape[i]);
    return bytes;
}

TEST_P(Repeats, AreBitEqual) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Context context = context_for(problem, subject().engine);
    Call call(problem, inputs, device_memory(), true);
    std::vector<std::vector<unsigned char>> first;
    std::vector<unsigned char> bytes;
    for (int i = 0; i < 100; ++i) {
        for (const auto &[name, tensor] : outputs)
            device_memory().fill((call.arguments.*tensor).data, 0xFF, contiguous_bytes(call.arguments.*tensor));
        for (const annulus_pass pass : passes)
            check(compute(call, pass, context));
        for (std::size_t j = 0; j < std::size(outputs); ++j) {
            const annulus_tensor &output = call.arguments.*outputs[j].tensor;
            bytes.resize(contiguous_bytes(output));
            device_memory().download(bytes.data(), output.data, bytes.size());
            if (i == 0)
                first.push_back(bytes);
            ASSERT_TRUE(bytes == first[j]) << outputs[j].name << " of repeat " << i;
        }
    }
    expect_agreement_with_cpu(problem, inputs, call.results());
}

std::vector<NamedProblem> long_problems() {
    const Problem longnet = {.length = 8200,
                             .heads = 4,
                             .dim = 64,
                             .branches = {{.segment = 1024},
                                          {.segment = 2048, .dilation = 2},
                                          {.segment = 4096, .dilation = 4},
                                          {.segment = 8192, .dilation = 8}}};
    Problem grouped = longnet, wide = longnet, two_grids = longnet, whole_units = longnet;
    grouped.dim = 128;
    grouped.kv_heads = 2;
    wide.dim = 192;
    two_grids.branches = {{.segment = 1024, .dilation = 2}, {.segment = 4096, .dilation = 3}};
    whole_units.length = 8192;
    whole_units.dim = 128;
    whole_units.branches = {{.segment = 1024}};
    Problem long_segments = whole_units, curve = longnet, wide_curve = wide, curve_of_whole_units = whole_units;
    long_segments.length = 8200;
    long_segments.branches = {{.segment = 4100}};
    curve.branches = wide_curve.branches = {{.segment = 3000, .dilation = 4, .order = ANNULUS_ORDER_HILBERT}};
    wide_curve.kv_heads = 2;
    curve_of_whole_units.branches = {{.segment = 4096, .dilation = 4, .order = ANNULUS_ORDER_HILBERT}};
    std::vector<NamedProblem> problems = {
        {"dim_64", longnet},          {"dim_128_grouped", grouped},    {"dim_192", wide},
        {"dilations_2_3", two_grids}, {"whole_units", whole_units},    {"long_segments", long_segments},
        {"hilbert", curve},           {"hilbert_dim_192", wide_curve}, {"hilbert_whole_units", curve_of_whole_units}};
    for (std::size_t i = 0, count = problems.size(); i < count; ++i) {
        problems.push_back({problems[i].name + "_causal", problems[i].problem});
        problems.back().problem.causal = true;
    }
    return in_subject_dtypes(problems);
}

INSTANTIATE_TEST_SUITE_P(Fused, Repeats, testing::ValuesIn(long_problems()), name_of_problem);

// ---- Graphs

class Graph : public testing::TestWithParam<std::tuple<NamedProblem, bool>> {};

TEST_P(Graph, CapturedOnceReplaysOnNewData) {
    const auto &[named, own_workspace] = GetParam();
    const Problem &problem = named.problem;
    CudaMemory own_memory;
    RunOptions options = subject();
    options.memory = &own_memory;
    std::vector<Inputs> inputs;
    std::vector<Results> wanted;
    for (const std::uint64_t seed : {1, 2, 3}) {
        inputs.push_back(random_inputs(problem, seed));
        wanted.push_back(run(problem, inputs.back(), options));
    }

    const Context context = make_context(make_config(problem, options).get(), 0, own_memory);
    Allocation workspace;
    if (own_workspace) {
        const annulus_call_options call_options = options_of(problem);
        const annulus_problem sizes = sizes_of(problem, &call_options);
        std::uint64_t bytes = 0;
        for (const annulus_pass pass : passes) {
            std::uint64_t pass_bytes = 0;
            check(annulus_workspace_size(context.get(), &sizes, pass, &pass_bytes));
            bytes = std::max(bytes, pass_bytes);
        }
        workspace = allocate(own_memory, bytes + 1);
        own_memory.fill(workspace.get(), 0xFF, bytes + 1);
        check(annulus_context_set_workspace(context.get(), workspace.get(), bytes + 1));
    }
    Call call(problem, inputs[0], own_memory, true);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check_cuda(cudaStreamBeginCapture(own_memory.cuda_stream(), cudaStreamCaptureModeGlobal));
    const annulus_status forward = call.forward(context.get());
    const annulus_status backward = call.backward(context.get());
    const cudaError_t captured = cudaStreamEndCapture(own_memory.cuda_stream(), &graph);
    check(forward);
    check(backward);
    check_cuda(captured);
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "replay " << i);
        call.reset(inputs[i]);
        check_cuda(cudaGraphLaunch(replay, own_memory.cuda_stream()));
        expect_identical(call.results(), wanted[i]);
    }
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
}

std::vector<NamedProblem> graph_problems() {
    std::vector<NamedProblem> problems = some_patterns();
    problems.push_back(split_problems().front());
    return problems;
}

std::string name_of_graph(const testing::TestParamInfo<Graph::ParamType> &info) {
    const auto &[named, own_workspace] = info.param;
    return named.name + (own_workspace ? "_workspace" : "_pool");
}

INSTANTIATE_TEST_SUITE_P(Fused, Graph, testing::Combine(testing::ValuesIn(graph_problems()), testing::Bool()),
                         name_of_graph);

} // namespace
} // namespace annulus::test
