// SPDX-License-Identifier: Apache-2.0
// What a CUDA context promises about streams, graphs, devices, threads and repeated calls.
#include "cuda/cuda_memory.hpp"
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

Problem small_problem() {
    return {.length = 600,
            .dim = 64,
            .branches = {{.segment = 200}, {.dilation = 2}},
            .causal = true,
            .dtype = ANNULUS_FLOAT16};
}

// Contexts differ only in memory and stream here, so results must be equal to the bit.
RunOptions from_own_pool(Memory &memory) {
    RunOptions options = subject();
    options.memory = &memory;
    options.own_workspace = false;
    return options;
}

Context make_context(const Problem &problem, const RunOptions &options) {
    return make_context(make_config(problem, options).get(), options.threads, *options.memory);
}

Results forward_and_backward(Call &call, annulus_context *context) {
    check(call.forward(context));
    check(call.backward(context));
    return call.results();
}

struct HostFree {
    void operator()(void *data) const { cudaFreeHost(data); }
};

// Uploads arrive late on the stream; until then the memory holds NaN.
class LateMemory final : public CudaMemory {
  public:
    ~LateMemory() override { cudaDeviceSynchronize(); }

    void *allocate(std::size_t bytes) override {
        void *const data = CudaMemory::allocate(bytes);
        check_cuda(cudaMemset(data, 0xFF, bytes));
        check_cuda(cudaDeviceSynchronize());
        return data;
    }
    void upload(void *to, const void *from, std::size_t bytes) override {
        for (int i = 0; i < 16; ++i)
            fill(scratch_.get(), 0, scratch_bytes);
        void *pinned = nullptr;
        check_cuda(cudaMallocHost(&pinned, bytes));
        staged_.emplace_back(pinned);
        std::memcpy(pinned, from, bytes);
        CudaMemory::upload(to, pinned, bytes);
    }

  private:
    static constexpr std::size_t scratch_bytes = std::size_t{256} << 20;

    std::vector<std::unique_ptr<void, HostFree>> staged_;
    Allocation scratch_ = test::allocate(*this, scratch_bytes);
};

TEST(Stream, CallsComeAfterWhatTheStreamWasGivenBefore) {
    const Problem problem = mixed_problem(ANNULUS_FLOAT32);
    const Inputs inputs = random_inputs(problem, 1);
    const Results wanted = run(problem, inputs, from_own_pool(*subject().memory));
    LateMemory memory;
    const Context context = make_context(problem, from_own_pool(memory));
    Call call(problem, inputs, memory, true);
    expect_identical(forward_and_backward(call, context.get()), wanted);
}

// Holds a stream up until it is opened. It opens itself after so long that only a caller who waits can be the reason.
class Gate {
  public:
    void close(cudaStream_t stream) {
        check_cuda(cudaLaunchHostFunc(
            stream, [](void *gate) { static_cast<Gate *>(gate)->wait(); }, this));
    }
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    bool was_forced() const { return forced_; }

  private:
    void wait() {
        std::unique_lock lock(mutex_);
        forced_ = !changed_.wait_for(lock, std::chrono::seconds(20), [&] { return open_; });
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
    bool forced_ = false;
};

TEST(Stream, CallsDoNotWaitForTheDevice) {
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    CudaMemory memory;
    const Context context = make_context(problem, from_own_pool(memory));
    Call call(problem, inputs, memory, true);
    const Results wanted = forward_and_backward(call, context.get()); // loads the kernels, which may wait
    call.reset(inputs);
    Gate gate;
    gate.close(memory.cuda_stream());
    const annulus_status forward = call.forward(context.get());
    const annulus_status backward = call.backward(context.get());
    gate.open();
    check(forward);
    check(backward);
    expect_identical(call.results(), wanted);
    EXPECT_FALSE(gate.was_forced());
}

TEST(Stream, ContextMovesFromStreamToStream) {
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    CudaMemory first, second, legacy(CudaMemory::Order::legacy_stream);
    const Context context = make_context(problem, from_own_pool(first));
    std::vector<Results> results;
    for (CudaMemory *memory : {&first, &second, &legacy, &first}) {
        check(annulus_context_set_stream(context.get(), memory->stream()));
        Call call(problem, inputs, *memory, true);
        results.push_back(forward_and_backward(call, context.get()));
        expect_identical(results.back(), results.front());
    }
}

// Destroying waits neither for the context's own calls nor for another stream, and the calls still write their results.
TEST(Stream, DestroyingAContextWaitsForNothing) {
    const Problem problem = small_problem();
    const Inputs inputs = random_inputs(problem, 1);
    CudaMemory memory, other;
    const Results wanted = run(problem, inputs, from_own_pool(memory));
    Context context = make_context(problem, from_own_pool(memory));
    Context idle = make_context(problem, from_own_pool(other));
    Call call(problem, inputs, memory, true), unheld(problem, inputs, other, true);
    forward_and_backward(call, context.get()); // loads the kernels, which may wait
    forward_and_backward(unheld, idle.get());
    call.reset(inputs);
    unheld.reset(inputs);
    Gate gate;
    gate.close(memory.cuda_stream());
    check(call.forward(context.get()));
    check(call.backward(context.get()));
    const auto started = std::chrono::steady_clock::now();
    context.reset();
    idle.reset();
    // A later context takes what these contexts gave back. It does not wait for the stream that is still held up.
    const Context next = make_context(problem, from_own_pool(other));
    expect_identical(forward_and_backward(unheld, next.get()), wanted);
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(10));
    EXPECT_EQ(cudaStreamQuery(memory.cuda_stream()), cudaErrorNotReady);
    gate.open();
    expect_identical(call.results(), wanted);
    EXPECT_FALSE(gate.was_forced());
}

class Graph : public testing::TestWithParam<std::tuple<annulus_dtype, bool>> {};

TEST_P(Graph, CapturedOnceReplaysOnNewData) {
    const auto [dtype, own_workspace] = GetParam();
    const Problem problem = mixed_problem(dtype);
    CudaMemory memory;
    const RunOptions options = from_own_pool(memory);
    std::vector<Inputs> inputs;
    std::vector<Results> wanted;
    for (const std::uint64_t seed : {1, 2, 3}) {
        inputs.push_back(random_inputs(problem, seed));
        wanted.push_back(run(problem, inputs.back(), options));
    }

    const Context context = make_context(problem, options);
    Allocation workspace;
    if (own_workspace) {
        const annulus_problem sizes = sizes_of(problem);
        std::uint64_t forward = 0, backward = 0;
        check(annulus_workspace_size(context.get(), &sizes, ANNULUS_PASS_FORWARD, &forward));
        check(annulus_workspace_size(context.get(), &sizes, ANNULUS_PASS_BACKWARD, &backward));
        const std::uint64_t bytes = std::max(forward, backward);
        workspace = allocate(memory, bytes);
        memory.fill(workspace.get(), 0xFF, bytes);
        check(annulus_context_set_workspace(context.get(), workspace.get(), bytes));
    }
    Call call(problem, inputs[0], memory, true);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check_cuda(cudaStreamBeginCapture(memory.cuda_stream(), cudaStreamCaptureModeGlobal));
    const annulus_status forward = call.forward(context.get());
    const annulus_status backward = call.backward(context.get());
    const cudaError_t captured = cudaStreamEndCapture(memory.cuda_stream(), &graph);
    check(forward);
    check(backward);
    check_cuda(captured);
    check_cuda(cudaGraphInstantiate(&replay, graph, 0));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "replay " << i);
        call.reset(inputs[i]);
        check_cuda(cudaGraphLaunch(replay, memory.cuda_stream()));
        expect_identical(call.results(), wanted[i]);
    }
    check_cuda(cudaGraphExecDestroy(replay));
    check_cuda(cudaGraphDestroy(graph));
}

std::string graph_name(const testing::TestParamInfo<Graph::ParamType> &info) {
    const auto [dtype, own_workspace] = info.param;
    return std::string(annulus_dtype_name(dtype)) + (own_workspace ? "_workspace" : "_pool");
}

INSTANTIATE_TEST_SUITE_P(Gemm, Graph, testing::Combine(testing::ValuesIn(subject_dtypes()), testing::Bool()),
                         graph_name);

class Repeats : public testing::TestWithParam<annulus_dtype> {};

TEST_P(Repeats, AreBitEqualWhereAskedFor) {
    for (const bool causal : {false, true}) {
        const Problem problem = {.length = 2500,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .dim = 64,
                                 .branches = {{}, {.segment = 600, .dilation = 2, .query = ANNULUS_QUERY_EVERY}},
                                 .causal = causal,
                                 .dtype = GetParam()};
        const Inputs inputs = random_inputs(problem, 1);
        const RunOptions options = from_own_pool(*subject().memory);
        const Context context = make_context(problem, options);
        Call call(problem, inputs, *options.memory, true);
        const Results first = forward_and_backward(call, context.get());
        for (int i = 1; i < 20; ++i) {
            SCOPED_TRACE(testing::Message() << "repeat " << i);
            call.reset(inputs);
            expect_identical(forward_and_backward(call, context.get()), first);
        }
    }
}

std::string dtype_name(const testing::TestParamInfo<annulus_dtype> &info) {
    return annulus_dtype_name(info.param);
}

INSTANTIATE_TEST_SUITE_P(Gemm, Repeats, testing::ValuesIn(subject_dtypes()), dtype_name);

TEST(Contexts, AutoIsGemmForFloat32) {
    Problem problem = small_problem();
    problem.dtype = ANNULUS_FLOAT32;
    RunOptions options = from_own_pool(*subject().memory);
    options.engine = ANNULUS_ENGINE_AUTO;
    const Context context = make_context(problem, options);
    const auto served = [&] {
        annulus_engine engine = ANNULUS_ENGINE_REFERENCE;
        check(annulus_context_last_engine(context.get(), &engine));
        return engine;
    };
    EXPECT_EQ(served(), ANNULUS_ENGINE_AUTO);
    Call call(problem, random_inputs(problem, 1), *options.memory);
    check(call.forward(context.get()));
    EXPECT_EQ(served(), ANNULUS_ENGINE_GEMM);
    check(call.backward(context.get()));
    EXPECT_EQ(served(), ANNULUS_ENGINE_GEMM);
}

// The current device is restored, whichever device it is, also one that is not the context's.
TEST(Contexts, CurrentDeviceIsRestored) {
    const Problem problem = small_problem();
    const RunOptions options = from_own_pool(*subject().memory);
    Call call(problem, random_inputs(problem, 1), *options.memory);
    int devices = 0;
    check_cuda(cudaGetDeviceCount(&devices));
    for (int device = 0; device < devices; ++device) {
        check_cuda(cudaSetDevice(device));
        const auto expect_current = [&](const char *after) {
            int current = -1;
            check_cuda(cudaGetDevice(&current));
            EXPECT_EQ(current, device) << "after " << after;
        };
        Context context = make_context(problem, options);
        expect_current("annulus_context_create");
        check(call.forward(context.get()));
        expect_current("annulus_forward");
        check(call.backward(context.get()));
        expect_current("annulus_backward");
        context.reset();
        expect_current("annulus_context_destroy");
    }
    check_cuda(cudaSetDevice(0));
}

TEST(Contexts, AnotherMayDoTheBackwardPass) {
    const Problem problem = small_problem();
    const RunOptions options = from_own_pool(*subject().memory);
    const Inputs inputs = random_inputs(problem, 1);
    const Context first = make_context(problem, options), second = make_context(problem, options);
    Call call(problem, inputs, *options.memory, true);
    check(call.forward(first.get()));
    check(call.backward(second.get()));
    expect_identical(call.results(), run(problem, inputs, options));
}

TEST(Contexts, OneServesManyProblems) {
    const RunOptions options = from_own_pool(*subject().memory);
    const Problem first = small_problem();
    Problem second = first;
    second.length = 333;
    second.dtype = ANNULUS_FLOAT32;
    const Context context = make_context(first, options);
    for (int round = 0; round < 3; ++round)
        for (const Problem &problem : {first, second}) {
            const Inputs inputs = random_inputs(problem, 1);
            Call call(problem, inputs, *options.memory, true);
            expect_identical(forward_and_backward(call, context.get()), run(problem, inputs, options));
        }
}

TEST(Contexts, ThreadsOnTheirOwnStreamsDoNotDisturbEachOther) {
    constexpr int runners = 4;
    CudaMemory memories[runners];
    std::vector<Results> wanted, got(runners);
    const auto problem_of = [](int runner) {
        Problem problem = mixed_problem(subject_dtypes()[runner % subject_dtypes().size()]);
        problem.length += 101 * runner;
        return problem;
    };
    const auto compute = [&](int runner) {
        const Problem problem = problem_of(runner);
        const RunOptions options = from_own_pool(memories[runner]);
        return run(problem, random_inputs(problem, runner), options);
    };
    for (int runner = 0; runner < runners; ++runner)
        wanted.push_back(compute(runner));
    for (int round = 0; round < 5; ++round) {
        std::vector<std::thread> threads;
        for (int runner = 0; runner < runners; ++runner)
            threads.emplace_back([&, runner] {
                try {
                    got[runner] = compute(runner);
                } catch (const std::exception &error) {
                    ADD_FAILURE() << error.what();
                }
            });
        for (std::thread &thread : threads)
            thread.join();
        for (int runner = 0; runner < runners; ++runner)
            expect_identical(got[runner], wanted[runner]);
    }
}

std::int64_t free_bytes() {
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total));
    return static_cast<std::int64_t>(free);
}

// Other programs on the device also change its free memory. One quiet round out of five is enough; a leak has none.
TEST(Contexts, GiveTheirMemoryBack) {
    const Problem problem = small_problem();
    const RunOptions options = from_own_pool(*subject().memory);
    Call call(problem, random_inputs(problem, 1), *options.memory, true);
    const auto make_and_destroy = [&](int contexts) {
        for (int i = 0; i < contexts; ++i) {
            const Context context = make_context(problem, options);
            check(call.forward(context.get()));
            check(call.backward(context.get()));
        }
        check_cuda(cudaDeviceSynchronize());
    };
    make_and_destroy(3);
    std::int64_t lost = 0;
    for (int round = 0; round < 5; ++round) {
        const std::int64_t before = free_bytes();
        make_and_destroy(200);
        lost = before - free_bytes();
        if (lost < 16 << 20)
            return;
    }
    FAIL() << lost << " bytes of device memory did not come back from 200 contexts";
}

// This includes memory that a call got on a stream that the context has left.
TEST(Contexts, TheLastOneGivesAllMemoryOfTheDeviceBack) {
    Problem problem = small_problem();
    problem.length = 100'003;
    CudaMemory first, second;
    const Inputs inputs = random_inputs(problem, 1);
    Call call(problem, inputs, first, true);
    std::int64_t held = 0, lost = 0;
    for (int round = 0; round < 5; ++round) {
        const std::int64_t before = free_bytes();
        {
            const Context context = make_context(problem, from_own_pool(first));
            for (const CudaMemory *memory : {&first, &second}) {
                check(annulus_context_set_stream(context.get(), memory->cuda_stream()));
                check(call.forward(context.get()));
                check(call.backward(context.get()));
                check_cuda(cudaDeviceSynchronize());
            }
            held = before - free_bytes();
        }
        lost = before - free_bytes();
        if (held >= 32 << 20 && lost < 16 << 20)
            return;
    }
    FAIL() << held << " bytes of device memory were used and " << lost << " did not come back from the last context";
}

} // namespace
} // namespace annulus::test
