// SPDX-License-Identifier: Apache-2.0
// Replays a CUDA graph again and again, beside ordinary calls of the same context, and makes and destroys contexts on a
// device. The process must not hold more memory, its own or the device's, than before.
#include "soak/watch.hpp"

#include "cuda/cuda_memory.hpp"

#include "support/compare.hpp"
#include "support/run.hpp"

#include <gtest/gtest.h>

namespace annulus::test {
namespace {

class SoakOnDevice : public testing::Test {
  protected:
    const Problem problem_ = {.length = 300,
                              .heads = 4,
                              .dim = 64,
                              .branches = {{.segment = 64}, {.dilation = 3}},
                              .causal = true,
                              .dtype = ANNULUS_FLOAT16};
    const Inputs inputs_ = random_inputs(problem_, 1);
    const Config config_ = make_config(problem_, ANNULUS_ENGINE_AUTO);
    CudaMemory memory_;
    Call call_{problem_, inputs_, memory_, true};
    Watch watch_;

    // The device allocates and frees 2 MiB at a time.
    SoakOnDevice() {
        watch_.add("device memory, bytes", 8 << 20, [this] {
            std::size_t free = 0, all = 0;
            check_cuda(cudaStreamSynchronize(memory_.cuda_stream()));
            check_cuda(cudaMemGetInfo(&free, &all));
            return static_cast<double>(all - free);
        });
    }

    void both_passes(annulus_context *context) const {
        check(call_.forward(context));
        check(call_.backward(context));
    }
};

TEST_F(SoakOnDevice, GraphsBesideCalls) {
    const Context context = make_context(config_.get(), 0, memory_);
    both_passes(context.get());
    const Results wanted = call_.results();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check_cuda(cudaStreamBeginCapture(memory_.cuda_stream(), cudaStreamCaptureModeGlobal));
    const annulus_status forward = call_.forward(context.get()), backward = call_.backward(context.get());
    const cudaError_t captured = cudaStreamEndCapture(memory_.cuda_stream(), &graph);
    check(forward);
    check(backward);
    check_cuda(captured);
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    watch_.over(soak_calls(3000, 10'000), [&](long, long count) {
        for (long i = 0; i < count; ++i) {
            check_cuda(cudaGraphLaunch(replay, memory_.cuda_stream()));
            both_passes(context.get());
        }
    });
    check_cuda(cudaGraphLaunch(replay, memory_.cuda_stream()));
    expect_identical(call_.results(), wanted);
    watch_.expect_flat();
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
}

TEST_F(SoakOnDevice, Lives) {
    const Context always = make_context(config_.get(), 0, memory_); // keeps the device's memory pool
    watch_.over(soak_calls(3000, 10'000), [&](long, long count) {
        for (long i = 0; i < count; ++i)
            both_passes(make_context(config_.get(), 0, memory_).get());
    });
    watch_.expect_flat();
}

} // namespace
} // namespace annulus::test
