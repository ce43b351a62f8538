// SPDX-License-Identifier: Apache-2.0
// Contexts on GPUs with a communicator: CUDA graphs, and ranks that fail.
#include "cuda/cuda_memory.hpp"
#include "cuda/nccl_comms.hpp"

#include "support/compare.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace annulus::test {
namespace {

int device_count() {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count));
    return count;
}

// Segments extend over shards; each query has keys of both ranks.
Problem spread_problem() {
    Problem problem;
    problem.length = 512;
    problem.heads = 4;
    problem.dim = 32;
    problem.branches = {{.segment = 128}, {.dilation = 4}, {.segment = 300, .dilation = 3}};
    problem.dtype = ANNULUS_BFLOAT16;
    return problem;
}

// Two ranks with a GPU each.
class TwoGpus : public testing::Test {
  protected:
    static constexpr int ranks = 2;

    void SetUp() override {
        if (device_count() < ranks)
            GTEST_SKIP() << "needs two GPUs";
        for (int i = 0; i < ranks; ++i) {
            memories_.push_back(std::make_unique<CudaMemory>(CudaMemory::Order::own_stream, i));
            options_.memories.push_back(memories_.back().get());
        }
        options_.lengths = even_lengths(problem_.length, ranks);
        options_.run.engine = ANNULUS_ENGINE_GEMM;
        options_.run.aligned = true;
    }

    CudaMemory &memory(int rank) const { return *memories_[static_cast<std::size_t>(rank)]; }
    std::int64_t length() const { return problem_.length / ranks; }
    Inputs inputs_of(const Inputs &whole, int rank) const {
        return shard_inputs(problem_, whole, rank * length(), length());
    }
    Call call_of(const Inputs &whole, int rank) const {
        return Call(shard_problem(problem_, length()), inputs_of(whole, rank), memory(rank), true);
    }

    const Problem problem_ = spread_problem();
    RankOptions options_;
    std::vector<std::unique_ptr<CudaMemory>> memories_;
};

// The parameter: the communicators' flags.
class OverNccl : public TwoGpus, public testing::WithParamInterface<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Flags, OverNccl, testing::Values(0, ANNULUS_COMM_ONLY_NCCL),
                         testing::PrintToStringParamName());

TEST_P(OverNccl, ReplayAGraphOnNewData) {
    const std::vector<Comm> comms = make_nccl_comms(ranks, GetParam());
    std::vector<Inputs> inputs;
    std::vector<Results> wanted;
    for (const std::uint64_t seed : {1, 2, 3}) {
        inputs.push_back(random_inputs(problem_, seed));
        wanted.push_back(run_ranks(problem_, inputs.back(), options_, comms));
    }
    for_each_rank(ranks, [&](int rank) {
        CudaMemory &own = memory(rank);
        const Context context =
            make_rank_context(problem_, options_, rank, comms[static_cast<std::size_t>(rank)].get());
        const annulus_problem sizes = sizes_of(problem_);
        std::uint64_t bytes = 0;
        check(annulus_workspace_size(context.get(), &sizes, ANNULUS_PASS_BACKWARD, &bytes));
        std::uint64_t forward_bytes = 0;
        check(annulus_workspace_size(context.get(), &sizes, ANNULUS_PASS_FORWARD, &forward_bytes));
        bytes = std::max(bytes, forward_bytes);
        const Allocation workspace = allocate(own, bytes);
        check(annulus_context_set_workspace(context.get(), workspace.get(), bytes));
        Call call = call_of(inputs[0], rank);
        check(call.forward(context.get()));
        check(call.backward(context.get()));

        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        check_cuda(cudaStreamBeginCapture(own.cuda_stream(), cudaStreamCaptureModeThreadLocal));
        const annulus_status forward = call.forward(context.get());
        const annulus_status backward = call.backward(context.get());
        const cudaError_t captured = cudaStreamEndCapture(own.cuda_stream(), &graph);
        check(forward);
        check(backward);
        check_cuda(captured);
        check_cuda(cudaGraphInstantiate(&replay, graph, 0));
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            SCOPED_TRACE(testing::Message() << "rank " << rank << " replay " << i);
            call.reset(inputs_of(inputs[i], rank));
            check_cuda(cudaGraphLaunch(replay, own.cuda_stream()));
            // A copy into pageable memory would hold a lock of the driver until the replay ends. The other rank's
            // thread needs that lock to launch the replay for which this one waits.
            check_cuda(cudaStreamSynchronize(own.cuda_stream()));
            expect_identical(call.results(), shard_results(problem_, wanted[i], rank * length(), length()));
        }
        check_cuda(cudaGraphExecDestroy(replay));
        check_cuda(cudaGraphDestroy(graph));
    });
}

TEST_F(TwoGpus, LocalRanksAreNotCaptured) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    const Inputs inputs = random_inputs(problem_, 1);
    const Context context = make_rank_context(problem_, options_, 0, comms[0].get());
    const Call call = call_of(inputs, 0);
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(memory(0).cuda_stream(), cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(call.forward(context.get()), ANNULUS_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(annulus_last_error()).find("captured"), std::string::npos) << annulus_last_error();
    cudaStreamEndCapture(memory(0).cuda_stream(), &graph);
    cudaGetLastError();
    if (graph)
        check_cuda(cudaGraphDestroy(graph));
}

TEST_F(TwoGpus, ARankThatNeverCallsIsMissed) {
    const Inputs inputs = random_inputs(problem_, 1);
    std::vector<std::vector<Comm>> ways;
    ways.push_back(make_local_comms(ranks));
    for (const std::uint64_t flags : {0, int{ANNULUS_COMM_ONLY_NCCL}})
        ways.push_back(make_nccl_comms(ranks, flags));
    for (const std::vector<Comm> &comms : ways) {
        options_.timeout = 1;
        const Context context = make_rank_context(problem_, options_, 0, comms[0].get());
        const Call call = call_of(inputs, 0);
        EXPECT_EQ(call.forward(context.get()), ANNULUS_ERROR_COMM) << annulus_last_error();
        const std::string first = annulus_last_error();
        EXPECT_EQ(call.forward(context.get()), ANNULUS_ERROR_COMM);
        EXPECT_EQ(first, annulus_last_error());
        std::thread([&] {
            EXPECT_EQ(status_of(comms[0].get()), ANNULUS_ERROR_COMM);
            EXPECT_EQ(first, annulus_last_error());
        }).join();
        check_cuda(cudaStreamSynchronize(memory(0).cuda_stream()));
    }
}

// The ranks agree, but then rank 1's stream does not reach its messages. The call of rank 0 has returned when NCCL's
// kernels on it are stopped.
TEST_P(OverNccl, ALateRankShowsInTheStatus) {
    const std::vector<Comm> comms = make_nccl_comms(ranks, GetParam());
    const Inputs inputs = random_inputs(problem_, 1);
    options_.timeout = 60;
    std::promise<void> told;
    const std::shared_future<void> open(told.get_future());
    for_each_rank(ranks, [&](int rank) {
        annulus_comm *const comm = comms[static_cast<std::size_t>(rank)].get();
        const Context context = make_rank_context(problem_, options_, rank, comm);
        const Call call = call_of(inputs, rank);
        check(call.forward(context.get())); // connects the ranks
        check_cuda(cudaStreamSynchronize(memory(rank).cuda_stream()));
        EXPECT_EQ(status_of(comm), ANNULUS_OK);
        check(annulus_comm_set_timeout(comm, rank == 0 ? 1 : 60));
        if (rank == 1)
            check_cuda(cudaLaunchHostFunc(
                memory(rank).cuda_stream(),
                [](void *gate) {
                    static_cast<const std::shared_future<void> *>(gate)->wait_for(std::chrono::seconds(20));
                },
                const_cast<std::shared_future<void> *>(&open)));
        check(call.forward(context.get()));
        if (rank == 1) {
            open.wait_for(std::chrono::seconds(20));
            check(annulus_comm_abort(comm));
            return;
        }
        EXPECT_EQ(status_of(comm), ANNULUS_OK); // less than a second has passed
        check_cuda(cudaStreamSynchronize(memory(rank).cuda_stream()));
        EXPECT_EQ(status_of(comm), ANNULUS_ERROR_COMM);
        EXPECT_STREQ(annulus_last_error(), "another rank did not come within 1 s");
        told.set_value();
    });
}

TEST_F(TwoGpus, ACommunicatorIsForItsDevice) {
    const std::vector<Comm> comms = make_nccl_comms(ranks, 0);
    const Config config = make_config(problem_, options_.run);
    const Context context = make_context(config.get(), 1, memory(1));
    EXPECT_EQ(annulus_context_set_comm(context.get(), comms[0].get()), ANNULUS_ERROR_ARGUMENT);
    const Context right = make_context(config.get(), 1, memory(0));
    check(annulus_context_set_comm(right.get(), comms[0].get()));
}

} // namespace
} // namespace annulus::test
