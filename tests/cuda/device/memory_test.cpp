// SPDX-License-Identifier: Apache-2.0
// Which memory a CUDA call accepts, what it says about other memory, and how much it needs; and the other calls that a
// CUDA context refuses.
#include "cuda/cuda_memory.hpp"
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <regex>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

Problem small_problem() {
    return {.length = 300, .dim = 64, .branches = {{.segment = 100}, {.dilation = 3}}, .dtype = ANNULUS_FLOAT16};
}

void expect_refused(annulus_status status, annulus_status wanted, const std::string &word) {
    const std::string message = annulus_last_error();
    EXPECT_STREQ(annulus_status_name(status), annulus_status_name(wanted)) << message;
    EXPECT_TRUE(std::regex_search(message, std::regex("\\b" + word + "\\b"))) << message << " does not name " << word;
}

// A problem on device 0 and a context for it.
class DeviceMemory : public testing::Test {
  protected:
    const Problem problem_ = small_problem();
    const Inputs inputs_ = random_inputs(problem_, 1);
    CudaMemory memory_;
    const RunOptions options_ = [this] {
        RunOptions options = subject();
        options.memory = &memory_;
        return options;
    }();
    const Config config_ = make_config(problem_, options_);
    const Context context_ = make_context(config_.get(), 0, memory_);
    Call call_{problem_, inputs_, memory_, true};

    std::uint64_t workspace_size(annulus_pass pass) const {
        const annulus_problem sizes = sizes_of(problem_);
        std::uint64_t bytes = 0;
        check(annulus_workspace_size(context_.get(), &sizes, pass, &bytes));
        return bytes;
    }
    void expect_both_refused(annulus_status wanted, const std::string &word) const {
        expect_refused(call_.forward(context_.get()), wanted, word);
        expect_refused(call_.backward(context_.get()), wanted, word);
    }
    // Expects that the outputs on the device are still NaN.
    void expect_outputs_untouched() {
        const Results results = call_.results();
        for (const std::vector<double> *values : {&results.out, &results.lse, &results.d_q, &results.d_k, &results.d_v})
            EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double x) { return std::isnan(x); }));
    }
    void expect_calls_succeed() {
        call_.reset(inputs_);
        check(call_.forward(context_.get()));
        check(call_.backward(context_.get()));
        expect_identical(call_.results(), run(problem_, inputs_, options_));
    }
};

struct NamedArgument {
    const char *name;
    annulus_tensor Call::Arguments::*tensor;
};

constexpr NamedArgument forward_arguments[] = {{"q", &Call::Arguments::q},
                                               {"k", &Call::Arguments::k},
                                               {"v", &Call::Arguments::v},
                                               {"out", &Call::Arguments::out},
                                               {"lse", &Call::Arguments::lse}};
constexpr NamedArgument backward_only_arguments[] = {{"d_out", &Call::Arguments::d_out},
                                                     {"d_lse", &Call::Arguments::d_lse},
                                                     {"d_q", &Call::Arguments::d_q},
                                                     {"d_k", &Call::Arguments::d_k},
                                                     {"d_v", &Call::Arguments::d_v}};

class WrongMemory : public DeviceMemory {
  protected:
    // Larger than any tensor, so that its memory is not part of another block after it is freed.
    static constexpr std::size_t bytes = std::size_t{32} << 20;

    void *freed() {
        void *const data = memory_.allocate(bytes);
        memory_.release(data);
        return data;
    }

    void expect_refused_everywhere(void *data) {
        const auto with = [&](const NamedArgument &argument, auto compute) {
            SCOPED_TRACE(argument.name);
            annulus_tensor &tensor = call_.arguments.*argument.tensor;
            const annulus_tensor right = tensor;
            tensor.data = data;
            expect_refused((call_.*compute)(context_.get()), ANNULUS_ERROR_ARGUMENT, argument.name);
            tensor = right;
        };
        for (const NamedArgument &argument : forward_arguments) {
            with(argument, &Call::forward);
            with(argument, &Call::backward);
        }
        for (const NamedArgument &argument : backward_only_arguments)
            with(argument, &Call::backward);
        expect_outputs_untouched();
        expect_calls_succeed();
    }
};

TEST_F(WrongMemory, Null) {
    expect_refused_everywhere(nullptr);
}

TEST_F(WrongMemory, Host) {
    const Allocation data = allocate(host_memory(), bytes);
    expect_refused_everywhere(data.get());
}

TEST_F(WrongMemory, PinnedHost) {
    void *data = nullptr;
    check_cuda(cudaMallocHost(&data, bytes));
    expect_refused_everywhere(data);
    check_cuda(cudaFreeHost(data));
}

TEST_F(WrongMemory, Freed) {
    expect_refused_everywhere(freed());
}

TEST_F(WrongMemory, OfAnotherDevice) {
    int devices = 0;
    check_cuda(cudaGetDeviceCount(&devices));
    if (devices < 2)
        GTEST_SKIP() << "there is one device";
    void *data = nullptr;
    check_cuda(cudaSetDevice(1));
    check_cuda(cudaMalloc(&data, bytes));
    check_cuda(cudaSetDevice(0));
    expect_refused_everywhere(data);
    check_cuda(cudaFree(data));
}

TEST_F(WrongMemory, AsWorkspace) {
    const Allocation host = allocate(host_memory(), bytes);
    for (void *const data : {host.get(), freed()})
        expect_refused(annulus_context_set_workspace(context_.get(), data, bytes), ANNULUS_ERROR_ARGUMENT, "workspace");
    expect_calls_succeed(); // without one, as before
}

class ManagedMemory final : public CudaMemory {
  public:
    void *allocate(std::size_t bytes) override {
        void *data = nullptr;
        check_cuda(cudaMallocManaged(&data, bytes));
        return data;
    }
};

TEST_F(DeviceMemory, MayBeManaged) {
    ManagedMemory managed;
    RunOptions options = options_;
    options.memory = &managed;
    expect_identical(run(problem_, inputs_, options), run(problem_, inputs_, options_));
}

TEST_F(DeviceMemory, ComesFromWorkspacePoolOrAllocatorWithTheSameResult) {
    expect_calls_succeed(); // the pool
    const std::uint64_t bytes = std::max(workspace_size(ANNULUS_PASS_FORWARD), workspace_size(ANNULUS_PASS_BACKWARD));
    const Allocation workspace = allocate(memory_, bytes);
    check(annulus_context_set_workspace(context_.get(), workspace.get(), bytes));
    expect_calls_succeed();
    check(annulus_context_set_workspace(context_.get(), nullptr, 0));
    expect_calls_succeed();
}

TEST_F(DeviceMemory, WorkspaceTooSmallIsRefused) {
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
        const std::uint64_t bytes = workspace_size(pass);
        ASSERT_GT(bytes, 0);
        const Allocation workspace = allocate(memory_, 1 + bytes);
        auto *const odd = static_cast<unsigned char *>(workspace.get()) + 1; // where alignment costs most
        for (const std::uint64_t too_small : {bytes - 1, bytes / 2, std::uint64_t{1}}) {
            check(annulus_context_set_workspace(context_.get(), odd, too_small));
            expect_refused(pass == ANNULUS_PASS_FORWARD ? call_.forward(context_.get())
                                                        : call_.backward(context_.get()),
                           ANNULUS_ERROR_WORKSPACE, std::to_string(bytes));
            EXPECT_EQ(annulus_last_error_bytes(), bytes);
        }
        check(annulus_context_set_workspace(context_.get(), nullptr, 0));
    }
    expect_outputs_untouched();
}

// An allocator that records its calls.
struct Books {
    void *stream;                                                    // of every call
    bool empty = false;                                              // true if it has no memory to give
    std::vector<std::tuple<void *, std::size_t, std::size_t>> given; // address, bytes, alignment
    int allocations = 0;
    std::vector<std::string> complaints;

    explicit Books(void *call_stream) : stream(call_stream) {}

    annulus_allocator allocator() {
        annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
        allocator.allocate = [](void *user, std::size_t bytes, std::size_t alignment, void *on) {
            return static_cast<Books *>(user)->allocate(bytes, alignment, on);
        };
        allocator.release = [](void *user, void *data, std::size_t bytes, std::size_t alignment, void *on) {
            static_cast<Books *>(user)->release(data, bytes, alignment, on);
        };
        allocator.user = this;
        return allocator;
    }

  private:
    void *allocate(std::size_t bytes, std::size_t alignment, void *on) {
        ++allocations;
        if (on != stream)
            complaints.push_back("another stream in allocate");
        if (!std::has_single_bit(alignment) || alignment > 256)
            complaints.push_back("an alignment of " + std::to_string(alignment));
        void *data = nullptr;
        if (empty || cudaMallocAsync(&data, bytes, static_cast<cudaStream_t>(on)) != cudaSuccess)
            return nullptr;
        given.emplace_back(data, bytes, alignment);
        return data;
    }
    void release(void *data, std::size_t bytes, std::size_t alignment, void *on) {
        if (on != stream)
            complaints.push_back("another stream in release");
        const auto found = std::find(given.begin(), given.end(), std::tuple(data, bytes, alignment));
        if (found == given.end()) {
            complaints.push_back("released what was not allocated");
            return;
        }
        given.erase(found);
        cudaFreeAsync(data, static_cast<cudaStream_t>(on));
    }
};

TEST_F(DeviceMemory, AllocatorServesOnTheStream) {
    Books books(memory_.stream());
    const annulus_allocator allocator = books.allocator();
    check(annulus_context_set_allocator(context_.get(), &allocator));
    expect_calls_succeed();
    EXPECT_EQ(books.allocations, 2);
    EXPECT_TRUE(books.given.empty());
    EXPECT_EQ(books.complaints, std::vector<std::string>{});
}

TEST_F(DeviceMemory, AllocatorWithoutMemoryIsAnError) {
    Books books(memory_.stream());
    books.empty = true;
    const annulus_allocator allocator = books.allocator();
    check(annulus_context_set_allocator(context_.get(), &allocator));
    expect_both_refused(ANNULUS_ERROR_MEMORY, "allocator");
    expect_outputs_untouched();
    EXPECT_EQ(books.complaints, std::vector<std::string>{});
    books.empty = false;
    expect_calls_succeed();
}

TEST_F(DeviceMemory, DeviceWithoutMemoryIsAnError) {
    expect_identical(run(problem_, inputs_, options_), run(problem_, inputs_, options_)); // loads the kernels
    std::vector<Allocation> all;
    for (std::size_t bytes = std::size_t{1} << 30; bytes >= std::size_t{1} << 20;) {
        void *data = nullptr;
        if (cudaMalloc(&data, bytes) == cudaSuccess)
            all.emplace_back(data, Release{&memory_});
        else
            bytes /= 2;
    }
    cudaGetLastError();
    expect_both_refused(ANNULUS_ERROR_MEMORY, "memory");
    expect_outputs_untouched();
    all.clear();
    expect_calls_succeed();
}

std::vector<NamedProblem> problems_of_any_length() {
    const std::vector<NamedProblem> patterns = {
        {"dense", {.heads = 8, .kv_heads = 2, .dim = 64}},
        {"dense_256", {.heads = 16, .dim = 256, .causal = true}},
        {"segments", {.heads = 8, .dim = 128, .branches = {{.segment = 2048}, {.segment = 1 << 20, .dilation = 512}}}},
        {"every", {.batch = 4, .heads = 8, .dim = 48, .branches = {{.dilation = 4, .query = ANNULUS_QUERY_EVERY}}}},
        {"residue_hilbert",
         {.heads = 2,
          .dim = 64,
          .branches = {{.dilation = 3, .query = ANNULUS_QUERY_RESIDUE, .order = ANNULUS_ORDER_HILBERT}},
          .causal = true}},
        {"tiny_segments", {.heads = 64, .dim = 8, .branches = {{.segment = 1}, {.segment = 3, .dilation = 2}}}},
    };
    std::vector<NamedProblem> problems;
    for (const NamedProblem &pattern : patterns)
        for (const int bits : {10, 20, 40}) {
            problems.push_back(pattern);
            problems.back().name += "_2_to_" + std::to_string(bits);
            problems.back().problem.length = std::int64_t{1} << bits;
        }
    return with_dtypes(problems, subject_dtypes());
}

class Limit : public testing::TestWithParam<NamedProblem> {};

TEST_P(Limit, HoldsForTheWorkspace) {
    constexpr std::uint64_t mebibyte = 1 << 20, engines_own = 256 * mebibyte, ample = 64 * mebibyte;
    const Problem &problem = GetParam().problem;
    const annulus_problem sizes = sizes_of(problem);
    for (const std::uint64_t limit : {0 * mebibyte, mebibyte, 16 * mebibyte, ample, 1024 * mebibyte}) {
        SCOPED_TRACE(testing::Message() << "limit " << limit);
        RunOptions options = subject();
        options.workspace_limit = limit;
        const Context context = make_context(make_config(problem, options).get(), 0, *options.memory);
        for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
            std::uint64_t bytes = 0;
            const annulus_status status = annulus_workspace_size(context.get(), &sizes, pass, &bytes);
            if (status == ANNULUS_ERROR_WORKSPACE && limit != 0 && limit < ample)
                continue;
            check(status);
            EXPECT_LE(bytes, limit ? limit : engines_own);
        }
    }
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Gemm, Limit, testing::ValuesIn(problems_of_any_length()), name_of);

TEST_F(DeviceMemory, LimitThatIsTooSmallIsRefused) {
    check(annulus_config_set_workspace_limit(config_.get(), 1));
    check(annulus_context_set_config(context_.get(), config_.get()));
    expect_both_refused(ANNULUS_ERROR_WORKSPACE, "limit is 1");
    expect_outputs_untouched();
}

TEST_F(DeviceMemory, EstimateSaysWhatTheWorkspaceIs) {
    const annulus_problem sizes = sizes_of(problem_);
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD, ANNULUS_PASS_MASS}) {
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        check(annulus_estimate_problem(context_.get(), &sizes, pass, ANNULUS_ALL_BRANCHES, &estimate));
        EXPECT_EQ(estimate.workspace_bytes, workspace_size(pass));
    }
}

TEST(Refused, Float64) {
    const Problem problem = {.dtype = ANNULUS_FLOAT64};
    for (const annulus_engine engine : {ANNULUS_ENGINE_GEMM, ANNULUS_ENGINE_AUTO}) {
        RunOptions options = subject();
        options.engine = engine;
        const Context context = make_context(make_config(problem, options).get(), 0, *options.memory);
        const Call call(problem, random_inputs(problem, 1), *options.memory);
        expect_refused(call.forward(context.get()), ANNULUS_ERROR_UNSUPPORTED, "float64");
        expect_refused(call.backward(context.get()), ANNULUS_ERROR_UNSUPPORTED, "float64");
    }
}

TEST(Refused, EngineOfAnotherDevice) {
    const auto expect_engine_refused = [](Memory &memory, annulus_engine engine) {
        annulus_context *raw = nullptr;
        check(annulus_context_create(&raw, memory.device(), 0));
        const Context context(raw);
        const Config config = make_config(small_problem(), engine);
        expect_refused(annulus_context_set_config(raw, config.get()), ANNULUS_ERROR_UNSUPPORTED,
                       annulus_engine_name(engine));
    };
    expect_engine_refused(*subject().memory, ANNULUS_ENGINE_CPU);
    expect_engine_refused(*subject().memory, ANNULUS_ENGINE_REFERENCE);
    expect_engine_refused(host_memory(), ANNULUS_ENGINE_GEMM);
}

TEST(Refused, DeviceThatIsNotThere) {
    std::int32_t devices = 0;
    check(annulus_device_count(ANNULUS_DEVICE_CUDA, &devices));
    for (const std::int32_t index : {devices, -1, INT32_MAX}) {
        annulus_context *context = nullptr;
        expect_refused(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, index), ANNULUS_ERROR_ARGUMENT, "index");
        EXPECT_EQ(context, nullptr);
    }
}

} // namespace
} // namespace annulus::test
