// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/cuda.hpp"
#include "cli/devices/cuda_check.hpp"
#include "cli/devices/cuda_yardsticks.hpp"

#include <algorithm>
#include <type_traits>

namespace annulus::cli {

namespace {

struct DestroyStream {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;

Stream make_stream() {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    return Stream(stream);
}

struct DestroyEvent {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

Event make_event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event), "make an event");
    return Event(event);
}

CudaDevice facts_of(int index) {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, index), "describe device " + std::to_string(index));
    return {properties.name, properties.major, properties.minor, properties.totalGlobalMem};
}

// An allocator for a context that knows how many bytes it has given out. It waits for the device, so this is not for
// calls that are timed.
class CountingAllocator {
  public:
    annulus_allocator interface() { return {sizeof(annulus_allocator), allocate, release, this}; }
    std::uint64_t peak() const { return peak_; }
    void reset() { peak_ = held_; }

  private:
    static void *allocate(void *self, std::size_t bytes, std::size_t, void *) {
        auto &counter = *static_cast<CountingAllocator *>(self);
        void *memory = nullptr;
        if (cudaMalloc(&memory, bytes) != cudaSuccess) {
            cudaGetLastError(); // or later calls would report it
            return nullptr;
        }
        counter.held_ += bytes;
        counter.peak_ = std::max(counter.peak_, counter.held_);
        return memory;
    }

    static void release(void *self, void *memory, std::size_t bytes, void *) {
        cudaDeviceSynchronize(); // an error of the work shows up after the call
        cudaFree(memory);
        static_cast<CountingAllocator *>(self)->held_ -= bytes;
    }

    std::uint64_t held_ = 0, peak_ = 0;
};

class CudaMemory : public Memory {
  public:
    explicit CudaMemory(int index) : device_(facts_of(index)) {
        check_cuda(cudaSetDevice(index), "use device " + std::to_string(index));
        stream_ = make_stream();
        start_ = make_event();
        stop_ = make_event();
    }

    Allocation allocate(std::size_t bytes) override {
        void *memory = nullptr;
        check_cuda(cudaMalloc(&memory, bytes), "allocate " + std::to_string(bytes) + " bytes");
        return {static_cast<std::byte *>(memory), {this}};
    }

    bool is_host() const override { return false; }

    void copy_in(void *to, const void *from_host, std::size_t bytes) override {
        copy(to, from_host, bytes, cudaMemcpyHostToDevice);
    }
    void copy_out(void *to_host, const void *from, std::size_t bytes) override {
        copy(to_host, from, bytes, cudaMemcpyDeviceToHost);
    }

    void order(annulus_context *context) override { check(annulus_context_set_stream(context, stream_.get())); }

    void finish() override { check_cuda(cudaStreamSynchronize(stream_.get()), "finish the computation"); }

    double seconds_of(const Work &work) override {
        check_cuda(cudaEventRecord(start_.get(), stream_.get()), "record an event");
        work();
        check_cuda(cudaEventRecord(stop_.get(), stream_.get()), "record an event");
        check_cuda(cudaEventSynchronize(stop_.get()), "finish the computation");
        float milliseconds = 0;
        check_cuda(cudaEventElapsedTime(&milliseconds, start_.get(), stop_.get()), "read the time between events");
        return static_cast<double>(milliseconds) / 1e3;
    }

    // What the calls take through their allocator at a time, and what else is gone from the device after them.
    std::optional<std::uint64_t> peak_bytes_of(annulus_context *context, const Work &work) override {
        const annulus_allocator counting = allocator_.interface();
        check(annulus_context_set_allocator(context, &counting));
        allocator_.reset();
        finish();
        const std::size_t before = free_bytes();
        work();
        finish();
        const std::size_t after = free_bytes();
        check(annulus_context_set_allocator(context, nullptr));
        return allocator_.peak() + (before - std::min(before, after));
    }

    int warm_up_rounds() const override { return 3; }

    Piece piece() const override { return {5e13, std::int64_t{1} << 18}; }

    annulus_dtype fast_dtype() const override {
        return device_.major >= 8 ? ANNULUS_BFLOAT16 : device_.major == 7 ? ANNULUS_FLOAT16 : ANNULUS_FLOAT32;
    }

    std::vector<Yardstick> yardsticks(annulus_dtype dtype, bool allow_tf32) override {
        return {gemm_yardstick(*this, stream_.get(), dtype, allow_tf32), copy_yardstick(*this, stream_.get())};
    }

    Facts::Fact fact() const override {
        return {{"device", "device"},
                text_cell(device_.name + ", compute capability " + std::to_string(device_.major) + "." +
                          std::to_string(device_.minor) + ", " + bytes_cell(device_.memory_bytes).text)};
    }

  protected:
    void release(std::byte *data) noexcept override { cudaFree(data); }

  private:
    void copy(void *to, const void *from, std::size_t bytes, cudaMemcpyKind kind) {
        check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()), "copy " + std::to_string(bytes) + " bytes");
        finish();
    }

    static std::size_t free_bytes() {
        std::size_t free = 0, total = 0;
        check_cuda(cudaMemGetInfo(&free, &total), "say how much memory is free");
        return free;
    }

    CudaDevice device_;
    Stream stream_;
    Event start_, stop_;
    CountingAllocator allocator_; // here, as a context keeps its address when a call fails
};

} // namespace

std::vector<CudaDevice> cuda_devices(int count) {
    std::vector<CudaDevice> devices;
    devices.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i)
        devices.push_back(facts_of(i));
    return devices;
}

std::unique_ptr<Memory> make_cuda_memory(int index) {
    return std::make_unique<CudaMemory>(index);
}

} // namespace annulus::cli
