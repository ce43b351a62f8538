// SPDX-License-Identifier: Apache-2.0
// Tests the program's GPU memory with a fake driver (fake_driver.c).
#include "cli/devices/cuda.hpp"
#include "cli/devices/cuda_driver.hpp"
#include "cli/devices/handles.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef ANNULUS_HAVE_CUDA_HEADERS
#include <cuda.h>
#endif

namespace annulus::cli {

namespace {

constexpr std::size_t device_bytes = std::size_t{1} << 20;

std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    cuda_driver().check(cuda_driver().memory_bytes(&free, &total), "count");
    return free;
}

// Returns the message of the exception that `work` throws.
template <class Work> std::string failure_of(const Work &work) {
    try {
        work();
    } catch (const Failure &failure) {
        return failure.what();
    }
    return "";
}

TEST(CudaMemory, SaysWhatTheDriverSaysOfADevice) {
    const std::vector<CudaDevice> devices = cuda_devices(1);
    ASSERT_EQ(devices.size(), 1U);
    EXPECT_EQ(devices[0].name, "Fake 40");
    EXPECT_EQ(devices[0].major, 8);
    EXPECT_EQ(devices[0].minor, 9);
    EXPECT_EQ(devices[0].memory_bytes, device_bytes);
    EXPECT_TRUE(cuda_devices(0).empty());
    EXPECT_EQ(failure_of([] { make_cuda_memory(1); }), "CUDA cannot find device 1: invalid device ordinal");
    EXPECT_EQ(make_cuda_memory(0)->fast_dtype(), ANNULUS_BFLOAT16);
}

TEST(CudaMemory, GivesAndTakesMemoryInEveryThread) {
    const std::unique_ptr<Memory> memory = make_cuda_memory(0);
    const std::string given = "attention over a million tokens";
    std::string taken(given.size(), ' ');
    Allocation allocation = memory->allocate(0);
    EXPECT_EQ(allocation.get(), nullptr);
    memory->copy_in(allocation.get(), given.data(), 0);
    std::thread([&] {
        allocation = memory->allocate(given.size());
        memory->copy_in(allocation.get(), given.data(), given.size());
    }).join();
    std::thread([&] { memory->copy_out(taken.data(), allocation.get(), taken.size()); }).join();
    EXPECT_EQ(taken, given);
    EXPECT_EQ(free_bytes(), device_bytes - given.size());
    std::thread([&] { allocation.reset(); }).join();
    EXPECT_EQ(free_bytes(), device_bytes);
    EXPECT_EQ(failure_of([&] { memory->allocate(device_bytes + 1); }),
              "CUDA cannot allocate 1048577 bytes: out of memory");
}

TEST(CudaMemory, TimesWorkByTheDevicesClock) {
    const std::unique_ptr<Memory> memory = make_cuda_memory(0);
    bool worked = false;
    std::thread([&] { EXPECT_DOUBLE_EQ(memory->seconds_of([&] { worked = true; }), 0.0015); }).join();
    EXPECT_TRUE(worked);
}

// Uses a CPU context, since the fake driver's memory is host memory.
TEST(CudaMemory, CountsWhatACallTakes) {
    const std::unique_ptr<Memory> memory = make_cuda_memory(0);
    const Context context = create_context({});
    const Config config = make_config();
    const annulus_branch branch = ANNULUS_BRANCH_INIT(16, 1);
    check(annulus_config_add_branch(config.get(), &branch, nullptr));
    check(annulus_context_set_config(context.get(), config.get()));
    std::array<float, 33 * 8> rows{}, out{};
    annulus_tensor tensor{rows.data(), ANNULUS_FLOAT32, 4, {1, 33, 1, 8}, {33 * 8, 8, 8, 1}};
    annulus_tensor result = tensor;
    result.data = out.data();
    const auto call = [&] {
        check(annulus_forward(context.get(), &tensor, &tensor, &tensor, &result, nullptr, nullptr));
    };
    const std::uint64_t alone = memory->peak_bytes_of(context.get(), call).value();
    EXPECT_GT(alone, 0U);
    EXPECT_EQ(free_bytes(), device_bytes); // all memory is free again
    Allocation kept;
    EXPECT_EQ(memory->peak_bytes_of(context.get(),
                                    [&] {
                                        call();
                                        call();
                                        kept = memory->allocate(1000);
                                    }),
              alone + 1000);
    kept.reset();
    kept = memory->allocate(device_bytes - alone + 1);
    EXPECT_NE(failure_of([&] { memory->peak_bytes_of(context.get(), call); }), "");
}

TEST(CudaDriver, NamesErrorsWithoutWords) {
    EXPECT_EQ(failure_of([] { cuda_driver().check(999, "work"); }),
              "CUDA cannot work: an error that it has no words for");
}

#ifdef ANNULUS_HAVE_CUDA_HEADERS
// True if both functions have the same number of arguments and pass them alike.
template <class... A, class... B> constexpr bool are_alike(CudaDriver::Status (*)(A...), CUresult (*)(B...)) {
    if constexpr (sizeof...(A) == sizeof...(B))
        return sizeof(CudaDriver::Status) == sizeof(CUresult) && ((sizeof(A) == sizeof(B)) && ...) &&
               ((std::is_pointer_v<A> || std::is_integral_v<A>)&&...);
    return false;
}
#define ALIKE(member, function) are_alike(decltype(CudaDriver::member){}, decltype(&function){})

static_assert(ALIKE(initialize, cuInit));
static_assert(ALIKE(error_string, cuGetErrorString));
static_assert(ALIKE(device, cuDeviceGet));
static_assert(ALIKE(device_name, cuDeviceGetName));
static_assert(ALIKE(device_attribute, cuDeviceGetAttribute));
static_assert(ALIKE(device_bytes, cuDeviceTotalMem));
static_assert(ALIKE(retain_primary_context, cuDevicePrimaryCtxRetain));
static_assert(ALIKE(set_current_context, cuCtxSetCurrent));
static_assert(ALIKE(create_stream, cuStreamCreate));
static_assert(ALIKE(destroy_stream, cuStreamDestroy));
static_assert(ALIKE(synchronize_stream, cuStreamSynchronize));
static_assert(ALIKE(create_event, cuEventCreate));
static_assert(ALIKE(destroy_event, cuEventDestroy));
static_assert(ALIKE(record_event, cuEventRecord));
static_assert(ALIKE(synchronize_event, cuEventSynchronize));
static_assert(ALIKE(elapsed_milliseconds, cuEventElapsedTime));
static_assert(ALIKE(allocate, cuMemAlloc));
static_assert(ALIKE(release, cuMemFree));
static_assert(ALIKE(memory_bytes, cuMemGetInfo));
static_assert(ALIKE(copy_in, cuMemcpyHtoDAsync));
static_assert(ALIKE(copy_out, cuMemcpyDtoHAsync));
static_assert(ALIKE(copy_within, cuMemcpyDtoDAsync));
static_assert(CudaDriver::success == CUDA_SUCCESS);
static_assert(CudaDriver::capability_major == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(CudaDriver::capability_minor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(CudaDriver::non_blocking == CU_STREAM_NON_BLOCKING);
#endif

} // namespace

} // namespace annulus::cli
