// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/cuda.hpp"
#include "cli/devices/cuda_driver.hpp"
#include "cli/devices/cuda_yardsticks.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

namespace annulus::cli {

namespace {

struct DestroyStream {
    void operator()(CudaDriver::Stream stream) const { cuda_driver().destroy_stream(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<CudaDriver::Stream>, DestroyStream>;

Stream make_stream() {
    CudaDriver::Stream stream = nullptr;
    const CudaDriver &driver = cuda_driver();
    driver.check(driver.create_stream(&stream, CudaDriver::non_blocking), "make a stream");
    return Stream(stream);
}

struct DestroyEvent {
    void operator()(CudaDriver::Event event) const { cuda_driver().destroy_event(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<CudaDriver::Event>, DestroyEvent>;

Event make_event() {
    CudaDriver::Event event = nullptr;
    const CudaDriver &driver = cuda_driver();
    driver.check(driver.create_event(&event, 0), "make an event");
    return Event(event);
}

CudaDriver::Device device_of(int index) {
    const CudaDriver &driver = cuda_driver();
    CudaDriver::Device device = 0;
    driver.check(driver.device(&device, index), "find device " + std::to_string(index));
    return device;
}

CudaDevice facts_of(int index) {
    const CudaDriver &driver = cuda_driver();
    const CudaDriver::Device device = device_of(index);
    const std::string action = "describe device " + std::to_string(index);
    std::array<char, 256> name{};
    CudaDevice facts{};
    std::size_t bytes = 0;
    driver.check(driver.device_name(name.data(), static_cast<int>(name.size()), device), action);
    driver.check(driver.device_attribute(&facts.major, CudaDriver::capability_major, device), action);
    driver.check(driver.device_attribute(&facts.minor, CudaDriver::capability_minor, device), action);
    driver.check(driver.device_bytes(&bytes, device), action);
    facts.name = name.data();
    facts.memory_bytes = bytes;
    return facts;
}

// The primary context of a device, which the library uses, too. It is never released, since the library may still have
// memory in it.
class PrimaryContext {
  public:
    explicit PrimaryContext(int index) {
        driver_.check(driver_.retain_primary_context(&context_, device_of(index)),
                      "use device " + std::to_string(index));
        use();
    }

    // Makes it the thread's current context. The library may have set another.
    void use() const { driver_.check(driver_.set_current_context(context_), "use its device"); }

    // Allocates memory. For 0 bytes the memory is null; the driver would return an error.
    CudaDriver::Status allocate(void **memory, std::size_t bytes) const {
        CudaDriver::Address address = 0;
        CudaDriver::Status status = driver_.set_current_context(context_);
        if (status == CudaDriver::success && bytes > 0)
            status = driver_.allocate(&address, bytes);
        *memory = reinterpret_cast<void *>(address);
        return status;
    }

    void release(void *memory) const noexcept {
        driver_.set_current_context(context_);
        driver_.release(address_of(memory));
    }

    // Waits for the device. The next call reports an error of the work.
    void finish() const noexcept {
        driver_.set_current_context(context_);
        driver_.synchronize_context();
    }

  private:
    const CudaDriver &driver_ = cuda_driver();
    CudaDriver::Context context_ = nullptr;
};

// An allocator for a context that counts the bytes in use. It waits for the device, so do not use it for calls that are
// timed.
class CountingAllocator {
  public:
    explicit CountingAllocator(const PrimaryContext &context) : context_(context) {}

    annulus_allocator interface() { return {sizeof(annulus_allocator), allocate, release, this}; }
    std::uint64_t peak() const { return peak_; }
    void reset() { peak_ = held_; }

  private:
    static void *allocate(void *self, std::size_t bytes, std::size_t, void *) {
        auto &counter = *static_cast<CountingAllocator *>(self);
        void *memory = nullptr;
        if (counter.context_.allocate(&memory, bytes) != CudaDriver::success)
            return nullptr;
        counter.held_ += bytes;
        counter.peak_ = std::max(counter.peak_, counter.held_);
        return memory;
    }

    static void release(void *self, void *memory, std::size_t bytes, std::size_t, void *) {
        auto &counter = *static_cast<CountingAllocator *>(self);
        counter.context_.finish();
        counter.context_.release(memory);
        counter.held_ -= bytes;
    }

    const PrimaryContext &context_;
    std::uint64_t held_ = 0, peak_ = 0;
};

class CudaMemory : public Memory {
  public:
    explicit CudaMemory(int index)
        : device_(facts_of(index)), context_(index), stream_(make_stream()), start_(make_event()), stop_(make_event()),
          allocator_(context_) {}

    Allocation allocate(std::size_t bytes) override {
        void *memory = nullptr;
        driver_.check(context_.allocate(&memory, bytes), "allocate " + std::to_string(bytes) + " bytes");
        return {static_cast<std::byte *>(memory), {this}};
    }

    bool is_host() const override { return false; }

    void copy_in(void *to, const void *from_host, std::size_t bytes) override {
        context_.use();
        driver_.check(driver_.copy_in(address_of(to), from_host, bytes, stream_.get()), copy_of(bytes));
        finish();
    }
    void copy_out(void *to_host, const void *from, std::size_t bytes) override {
        context_.use();
        driver_.check(driver_.copy_out(to_host, address_of(from), bytes, stream_.get()), copy_of(bytes));
        finish();
    }

    void order(annulus_context *context) override { check(annulus_context_set_stream(context, stream_.get())); }

    void finish() override {
        context_.use();
        driver_.check(driver_.synchronize_stream(stream_.get()), "finish the computation");
    }

    double seconds_of(const Work &work) override {
        context_.use();
        driver_.check(driver_.record_event(start_.get(), stream_.get()), "record an event");
        work();
        driver_.check(driver_.record_event(stop_.get(), stream_.get()), "record an event");
        driver_.check(driver_.synchronize_event(stop_.get()), "finish the computation");
        float milliseconds = 0;
        driver_.check(driver_.elapsed_milliseconds(&milliseconds, start_.get(), stop_.get()),
                      "read the time between events");
        return static_cast<double>(milliseconds) / 1e3;
    }

    // Returns the peak of the bytes that the calls allocate, plus the bytes of the device that are not free again after
    // them.
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

    Piece piece(std::int64_t, std::int64_t) const override { return {5e13, std::int64_t{1} << 18}; }

    annulus_dtype fast_dtype() const override {
        return device_.major >= 8 ? ANNULUS_BFLOAT16 : device_.major == 7 ? ANNULUS_FLOAT16 : ANNULUS_FLOAT32;
    }

    std::vector<Yardstick> yardsticks(annulus_dtype dtype, bool allow_tf32) override {
        return {gemm_yardstick(*this, stream_.get(), dtype, allow_tf32), copy_yardstick(*this, stream_.get())};
    }

    std::vector<Facts::Fact> facts() const override {
        return {{{"device", "device"},
                 text_cell(device_.name + ", compute capability " + std::to_string(device_.major) + "." +
                           std::to_string(device_.minor) + ", " + bytes_cell(device_.memory_bytes).text)}};
    }

  protected:
    void release(std::byte *data) noexcept override { context_.release(data); }

  private:
    static std::string copy_of(std::size_t bytes) { return "copy " + std::to_string(bytes) + " bytes"; }

    std::size_t free_bytes() const {
        std::size_t free = 0, total = 0;
        context_.use();
        driver_.check(driver_.memory_bytes(&free, &total), "say how much memory is free");
        return free;
    }

    const CudaDriver &driver_ = cuda_driver();
    CudaDevice device_;
    PrimaryContext context_;
    Stream stream_;
    Event start_, stop_;
    CountingAllocator allocator_; // a member, since a context keeps its address when a call fails
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
