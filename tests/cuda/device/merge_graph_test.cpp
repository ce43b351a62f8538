// SPDX-License-Identifier: Apache-2.0
// annulus_merge() on a CUDA device: in a captured graph, in place, and what it refuses there.
#include "cuda/cuda_memory.hpp"
#include "engines/subject.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <string>

namespace annulus::test {
namespace {

// A problem over the keys of two branches: a call for each branch, and a merge in place of the first one's results.
class TwoParts {
  public:
    TwoParts(const Problem &problem, const Inputs &inputs, CudaMemory &memory)
        : near_(problem), far_(problem), near_call_(near_, inputs, memory, true),
          far_call_(far_, inputs, memory, true) {
        near_.branches.resize(1);
        far_.branches.erase(far_.branches.begin());
        for (const Problem *part : {&near_, &far_})
            contexts_.push_back(make_context(make_config(*part, ANNULUS_ENGINE_AUTO).get(), 0, memory));
    }

    annulus_status run() const {
        const annulus_tensor outs[] = {near_call_.arguments.out, far_call_.arguments.out};
        const annulus_tensor lses[] = {near_call_.arguments.lse, far_call_.arguments.lse};
        annulus_status status = near_call_.forward(contexts_[0].get());
        if (status == ANNULUS_OK)
            status = far_call_.forward(contexts_[1].get());
        if (status == ANNULUS_OK)
            status = annulus_merge(contexts_[0].get(), 2, outs, lses, &outs[0], &lses[0], nullptr);
        return status;
    }

    void reset(const Inputs &inputs) {
        near_call_.reset(inputs);
        far_call_.reset(inputs);
    }

    Results results() { return near_call_.results(ANNULUS_PASS_FORWARD); }

  private:
    Problem near_, far_;
    Call near_call_, far_call_;
    std::vector<Context> contexts_;
};

Problem two_branches() {
    return {.length = 300,
            .heads = 4,
            .dim = 64,
            .branches = {{.segment = 64}, {.dilation = 3, .query = ANNULUS_QUERY_RESIDUE}},
            .dtype = ANNULUS_FLOAT16};
}

TEST(MergeOnDevice, CapturedOnceReplaysOnNewData) {
    const Problem problem = two_branches();
    CudaMemory memory;
    TwoParts parts(problem, random_inputs(problem, 1), memory);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check_cuda(cudaStreamBeginCapture(memory.cuda_stream(), cudaStreamCaptureModeGlobal));
    const annulus_status status = parts.run();
    const cudaError_t captured = cudaStreamEndCapture(memory.cuda_stream(), &graph);
    check(status);
    check_cuda(captured);
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (const std::uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        const Inputs inputs = random_inputs(problem, seed);
        parts.reset(inputs);
        check_cuda(cudaGraphLaunch(replay, memory.cuda_stream()));
        const Results merged = parts.results();
        const Results whole = run_exact(problem, inputs, false);
        expect_near("O", merged.out, whole.out, rounding_unit(problem.dtype));
        expect_near("LSE", merged.lse, whole.lse, 1e-5);
        // The same bits as without a graph.
        parts.reset(inputs);
        check(parts.run());
        expect_identical(parts.results(), merged);
    }
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
}

TEST(MergeOnDevice, RefusesHostMemoryAndFloat64) {
    CudaMemory memory;
    annulus_context *raw = nullptr;
    check(annulus_context_create(&raw, ANNULUS_DEVICE_CUDA, 0));
    const Context context(raw);
    for (const annulus_dtype dtype : {ANNULUS_FLOAT32, ANNULUS_FLOAT64}) {
        const Tensor out = Tensor::rows(Layout::rows, dtype, 1, 4, {2}, 8)[0];
        const Tensor lse = Tensor::statistics(Layout::rows, dtype, 1, 2, 4);
        Copies copies(memory);
        const annulus_tensor device_out = copies.view(out), device_lse = copies.view(lse);
        const auto expect_refused = [&](const annulus_tensor &part, const annulus_tensor &part_lse,
                                        const annulus_tensor &target, annulus_status wanted, const char *words) {
            EXPECT_EQ(annulus_merge(raw, 1, &part, &part_lse, &target, nullptr, nullptr), wanted);
            EXPECT_NE(std::string(annulus_last_error()).find(words), std::string::npos) << annulus_last_error();
        };
        if (dtype == ANNULUS_FLOAT64) {
            expect_refused(device_out, device_lse, device_out, ANNULUS_ERROR_UNSUPPORTED,
                           "dtype of outs[0] is float64");
            continue;
        }
        expect_refused(out.view(), device_lse, device_out, ANNULUS_ERROR_ARGUMENT, "data of outs[0]");
        expect_refused(device_out, lse.view(), device_out, ANNULUS_ERROR_ARGUMENT, "data of lses[0]");
        expect_refused(device_out, device_lse, out.view(), ANNULUS_ERROR_ARGUMENT, "data of out");
        check(annulus_merge(raw, 1, &device_out, &device_lse, &device_out, nullptr, nullptr));
    }
}

} // namespace
} // namespace annulus::test
