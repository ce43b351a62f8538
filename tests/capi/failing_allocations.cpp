// SPDX-License-Identifier: Apache-2.0
// Lets every allocation of the library fail once: the first, the second, …. The call then returns ANNULUS_ERROR_MEMORY
// and has written nothing. In the end nothing has leaked. This program's operator new serves the library, too.
#include <annulus/annulus.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <vector>

namespace {

std::atomic<long> allocations_until_failure{std::numeric_limits<long>::max()};
std::atomic<long> live_allocations{0};

void *allocate(std::size_t bytes, std::size_t alignment) noexcept {
    if (allocations_until_failure.fetch_sub(1) <= 0)
        return nullptr;
    alignment = std::max(alignment, alignof(std::max_align_t));
    void *const memory = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    live_allocations += memory != nullptr;
    return memory;
}

void *allocate_or_throw(std::size_t bytes, std::size_t alignment) {
    void *const memory = allocate(bytes, alignment);
    if (!memory)
        throw std::bad_alloc();
    return memory;
}

void release(void *memory) noexcept {
    live_allocations -= memory != nullptr;
    std::free(memory);
}

} // namespace

void *operator new(std::size_t bytes) {
    return allocate_or_throw(bytes, 1);
}
void *operator new[](std::size_t bytes) {
    return allocate_or_throw(bytes, 1);
}
void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept {
    return allocate(bytes, 1);
}
void *operator new[](std::size_t bytes, const std::nothrow_t &) noexcept {
    return allocate(bytes, 1);
}
void *operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void *operator new[](std::size_t bytes, std::align_val_t alignment) {
    return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void *operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t &) noexcept {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void *operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t &) noexcept {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void *memory) noexcept {
    release(memory);
}
void operator delete[](void *memory) noexcept {
    release(memory);
}
void operator delete(void *memory, std::size_t) noexcept {
    release(memory);
}
void operator delete[](void *memory, std::size_t) noexcept {
    release(memory);
}
void operator delete(void *memory, const std::nothrow_t &) noexcept {
    release(memory);
}
void operator delete[](void *memory, const std::nothrow_t &) noexcept {
    release(memory);
}
void operator delete(void *memory, std::align_val_t) noexcept {
    release(memory);
}
void operator delete[](void *memory, std::align_val_t) noexcept {
    release(memory);
}
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept {
    release(memory);
}
void operator delete[](void *memory, std::size_t, std::align_val_t) noexcept {
    release(memory);
}
void operator delete(void *memory, std::align_val_t, const std::nothrow_t &) noexcept {
    release(memory);
}
void operator delete[](void *memory, std::align_val_t, const std::nothrow_t &) noexcept {
    release(memory);
}

namespace {

// Runs the call with its first allocation failing, then its second, … until the call succeeds. Returns the number of
// failed calls.
int fail_each_allocation(
    const char *name, const std::function<annulus_status()> &call,
    const std::function<void()> &check_after_failure = [] {}) {
    for (int failures = 0; failures < 1000; ++failures) {
        allocations_until_failure = failures;
        const annulus_status status = call();
        allocations_until_failure = std::numeric_limits<long>::max();
        if (status == ANNULUS_OK)
            return failures;
        EXPECT_EQ(status, ANNULUS_ERROR_MEMORY) << name << ": " << annulus_last_error();
        EXPECT_STRNE(annulus_last_error(), "");
        check_after_failure();
        if (testing::Test::HasFailure())
            return failures;
    }
    ADD_FAILURE() << name << " never succeeds";
    return 0;
}

constexpr float untouched = 42;

struct Buffer {
    std::vector<float> values;
    annulus_tensor tensor;
    Buffer(std::vector<std::int64_t> shape, float value) : tensor{} {
        std::int64_t elements = 1;
        tensor.dtype = ANNULUS_FLOAT32;
        tensor.ndim = static_cast<std::int32_t>(shape.size());
        for (std::size_t d = shape.size(); d-- > 0;) {
            tensor.shape[d] = shape[d];
            tensor.stride[d] = elements;
            elements *= shape[d];
        }
        values.assign(static_cast<std::size_t>(elements), value);
        tensor.data = values.data();
    }
    bool holds_only(float value) const {
        return std::all_of(values.begin(), values.end(), [=](float x) { return x == value; });
    }
};

std::int32_t branch_count(const annulus_config *config) {
    std::int32_t count = -1;
    EXPECT_EQ(annulus_config_branch_count(config, &count), ANNULUS_OK);
    return count;
}

constexpr std::int64_t length = 200;

void fail_preset() {
    annulus_config *gigapath = nullptr;
    ASSERT_EQ(annulus_config_create(&gigapath), ANNULUS_OK);
    EXPECT_GT(fail_each_allocation(
                  "add_preset", [&] { return annulus_config_add_preset(gigapath, "gigapath"); },
                  [&] { EXPECT_EQ(branch_count(gigapath), 0); }),
              0);
    annulus_config_destroy(gigapath);
}

// Leaves 27 branches in the config, which has none.
void fail_branches(annulus_config *config) {
    annulus_branch branch = ANNULUS_BRANCH_INIT(64, 1);
    for (std::int32_t index = 0; index < 5; ++index) {
        branch.dilation = 1 + index;
        fail_each_allocation(
            "add_branch", [&] { return annulus_config_add_branch(config, &branch, nullptr); },
            [&] { EXPECT_EQ(branch_count(config), index); });
    }
    fail_each_allocation(
        "add_longnet", [&] { return annulus_config_add_longnet(config, 16, 2, 2, 20); },
        [&] { EXPECT_EQ(branch_count(config), 5); });
    const std::int64_t segments[] = {16, 32}, dilations[] = {1, 2};
    fail_each_allocation(
        "add_head_groups", [&] { return annulus_config_add_head_groups(config, 2, 2, segments, dilations); },
        [&] { EXPECT_EQ(branch_count(config), 25); });
    branch.dilation = 2;
    branch.order = ANNULUS_ORDER_HILBERT;
    fail_each_allocation("set_branch", [&] { return annulus_config_set_branch(config, 1, &branch); });
    fail_each_allocation("get_branch", [&] { return annulus_config_get_branch(config, 1, &branch); });
}

void fail_estimates(annulus_context *context) {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = ANNULUS_FLOAT32;
    problem.heads = problem.kv_heads = 2;
    problem.head_dim = 8;
    problem.batch = 1;
    problem.sequence_length = length;
    std::uint64_t bytes = 77;
    fail_each_allocation(
        "workspace_size", [&] { return annulus_workspace_size(context, &problem, ANNULUS_PASS_FORWARD, &bytes); },
        [&] { EXPECT_EQ(bytes, 77U); });
    problem.batch = 2; // another problem, whose plan does not exist yet
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    fail_each_allocation(
        "estimate_problem",
        [&] {
            return annulus_estimate_problem(context, &problem, ANNULUS_PASS_BACKWARD, ANNULUS_ALL_BRANCHES, &estimate);
        },
        [&] { EXPECT_EQ(estimate.pairs, 0); });
}

void fail_passes(annulus_context *context) {
    const std::vector<std::int64_t> shape = {1, length, 2, 8};
    Buffer q(shape, 0.5F), k(shape, 0.25F), v(shape, 1), d_out(shape, 1);
    Buffer out(shape, untouched), lse({1, 2, length}, untouched), mass({1, 2, length}, untouched);
    Buffer d_q(shape, untouched), d_k(shape, untouched), d_v(shape, untouched);
    EXPECT_GT(fail_each_allocation(
                  "forward",
                  [&] {
                      return annulus_forward(context, &q.tensor, &k.tensor, &v.tensor, &out.tensor, &lse.tensor,
                                             nullptr);
                  },
                  [&] { EXPECT_TRUE(out.holds_only(untouched) && lse.holds_only(untouched)); }),
              0);
    // The average of equal values is the value.
    EXPECT_TRUE(std::all_of(out.values.begin(), out.values.end(), [](float x) { return x > 0.999F && x < 1.001F; }));
    fail_each_allocation(
        "backward",
        [&] {
            return annulus_backward(context, &q.tensor, &k.tensor, &v.tensor, &out.tensor, &lse.tensor, &d_out.tensor,
                                    nullptr, &d_q.tensor, &d_k.tensor, &d_v.tensor, nullptr);
        },
        [&] { EXPECT_TRUE(d_q.holds_only(untouched) && d_k.holds_only(untouched) && d_v.holds_only(untouched)); });
    EXPECT_FALSE(d_v.holds_only(untouched));
    fail_each_allocation(
        "attention_mass",
        [&] { return annulus_attention_mass(context, &q.tensor, &k.tensor, &lse.tensor, &mass.tensor, nullptr); },
        [&] { EXPECT_TRUE(mass.holds_only(untouched)); });
    EXPECT_FALSE(mass.holds_only(untouched));
}

class FailingAllocations : public testing::TestWithParam<annulus_engine> {};

TEST_P(FailingAllocations, OneByOne) {
    const long live_before = live_allocations;
    annulus_config *config = nullptr;
    annulus_config *copy = nullptr;
    annulus_context *context = nullptr;
    const auto nothing_leaked_since = [](long live) { return [live] { EXPECT_EQ(live_allocations, live); }; };
    EXPECT_GT(fail_each_allocation(
                  "config_create", [&] { return annulus_config_create(&config); }, nothing_leaked_since(live_before)),
              0);
    fail_preset();
    fail_branches(config);
    EXPECT_EQ(annulus_config_set_engine(config, GetParam()), ANNULUS_OK);
    EXPECT_GT(
        fail_each_allocation(
            "config_copy", [&] { return annulus_config_copy(&copy, config); }, nothing_leaked_since(live_allocations)),
        0);
    EXPECT_GT(fail_each_allocation(
                  "context_create", [&] { return annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0); },
                  nothing_leaked_since(live_allocations)),
              0);
    EXPECT_GT(fail_each_allocation(
                  "set_config", [&] { return annulus_context_set_config(context, copy); },
                  nothing_leaked_since(live_allocations)),
              0);
    EXPECT_EQ(annulus_context_set_threads(context, 3), ANNULUS_OK);
    fail_estimates(context);
    fail_passes(context);

    annulus_context_destroy(context);
    annulus_config_destroy(copy);
    annulus_config_destroy(config);
    EXPECT_EQ(live_allocations, live_before);
}

INSTANTIATE_TEST_SUITE_P(Engines, FailingAllocations, testing::Values(ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU),
                         [](const testing::TestParamInfo<annulus_engine> &parameter) {
                             return annulus_engine_name(parameter.param);
                         });

} // namespace
