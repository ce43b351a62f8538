// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/cuda_device.hpp"

#include "core/workspace.hpp"
#include "cuda/device/cuda_error.hpp"

#include <cstdint>
#include <cstdio>

namespace annulus {

// The driver aligns every allocation to at least 256 bytes.
static_assert(Workspace::alignment <= 256);

CurrentDevice::CurrentDevice(int index) noexcept : error_(cudaGetDevice(&previous_)) {
    if (error_ != cudaSuccess || previous_ == index)
        return;
    error_ = cudaSetDevice(index);
    has_changed_ = error_ == cudaSuccess;
}

CurrentDevice::~CurrentDevice() {
    if (has_changed_)
        cudaSetDevice(previous_);
}

namespace {

int attribute(cudaDeviceAttr which, int index) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
    return value;
}

Stream make_side_stream() {
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return Stream(stream);
}

} // namespace

CudaDevice::SideStream::SideStream(SharedDevice &shared)
    : stream(make_side_stream()), done(make_event()), blas(shared, stream.get()) {}

// The stream for messages has priority: messages that other ranks wait for are sent while this rank computes.
CudaDevice::DeviceResources::DeviceResources(SharedDevice &shared)
    : pool(std::make_unique<PoolUse>(shared, false)),
      forked(make_event()), side{SideStream(shared), SideStream(shared)}, comm(make_stream()) {}

CudaDevice::CudaDevice(int index) : index_(index) {
    const CurrentDevice current(index);
    check(current.error(), "cudaSetDevice");
    compute_capability_ =
        10 * attribute(cudaDevAttrComputeCapabilityMajor, index) + attribute(cudaDevAttrComputeCapabilityMinor, index);
    multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, index);
    most_shared_bytes_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    resources_ = std::make_unique<DeviceResources>(SharedDevice::of(index));
}

double CudaDevice::cycles_per_byte() const {
    if (!cycles_per_byte_) {
        // Memory moves two bits over each wire of the bus in a cycle of its clock. Both clocks are in kHz.
        const double byte_rate =
            2. / 8 * attribute(cudaDevAttrGlobalMemoryBusWidth, index_) * attribute(cudaDevAttrMemoryClockRate, index_);
        const double cycle_rate = static_cast<double>(attribute(cudaDevAttrClockRate, index_)) * multiprocessors_;
        cycles_per_byte_ = byte_rate > 0 ? cycle_rate / byte_rate : 0;
    }
    return *cycles_per_byte_;
}

CudaDevice::~CudaDevice() {
    const CurrentDevice current(index_);
    resources_.reset();
}

void *CudaDevice::allocate(std::size_t bytes, void *stream) {
    const DevicePool *const pool = resources_->pool->get();
    if (!pool)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "CUDA device %d has no memory pools; a context on it must have a workspace or an allocator",
                    index_);
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    resources_->pool->go_to(cuda_stream);
    void *memory = nullptr;
    const cudaError_t error = cudaMallocFromPoolAsync(&memory, bytes, pool->get(), cuda_stream);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        throw Error(ANNULUS_ERROR_MEMORY, "CUDA device %d has no memory for a workspace of %zu bytes", index_, bytes);
    }
    check(error, "cudaMallocFromPoolAsync");
    return memory;
}

void CudaDevice::release(void *memory, void *stream) noexcept {
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaFreeAsync(memory, cuda_stream);
    if (error == cudaSuccess)
        error = cudaStreamIsCapturing(cuda_stream, &capture);
    if (error == cudaSuccess && capture == cudaStreamCaptureStatusNone) // otherwise the graph owns the memory
        error = cudaEventRecord(resources_->pool->last(), cuda_stream);
    if (error != cudaSuccess)
        cudaGetLastError();
}

void CudaDevice::check_memory(const char *name, const void *pointer) const {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeManaged ||
        (attributes.type == cudaMemoryTypeDevice && attributes.device == index_))
        return;
    if (attributes.type == cudaMemoryTypeDevice)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %p in memory of CUDA device %d; it must be memory of CUDA device %d",
                    name, pointer, attributes.device, index_);
    throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %p in host memory; it must be memory of CUDA device %d", name, pointer,
                index_);
}

void CudaDevice::enter() {
    current_.emplace(index_);
    const cudaError_t error = current_->error();
    if (error == cudaSuccess)
        return;
    current_.reset();
    check(error, "cudaSetDevice");
}

void CudaDevice::leave() noexcept {
    current_.reset();
}

void *CudaDevice::record(void *stream) {
    Event &event = resources_->events[next_event_++ % resources_->events.size()];
    if (!event)
        event = make_event();
    check(cudaEventRecord(event.get(), static_cast<cudaStream_t>(stream)), "cudaEventRecord");
    return event.get();
}

void CudaDevice::wait(void *stream, void *event) {
    check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
          "cudaStreamWaitEvent");
}

void CudaDevice::admit_peers() {
    const OnDevice current(index_);
    resources_->pool = std::make_unique<PoolUse>(SharedDevice::of(index_), true);
}

// Copies between devices with the function that also works without peer access.
void CudaDevice::copy(void *to, const void *from, std::size_t bytes, void *stream) {
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    cudaPointerAttributes source{};
    check(cudaPointerGetAttributes(&source, from), "cudaPointerGetAttributes");
    if (source.type == cudaMemoryTypeDevice && source.device != index_)
        check(cudaMemcpyPeerAsync(to, index_, from, source.device, bytes, cuda_stream), "cudaMemcpyPeerAsync");
    else
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_stream), "cudaMemcpyAsync");
}

bool CudaDevice::is_capturing(void *stream) const {
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
}

void CudaDevice::fork(cudaStream_t stream) {
    check(cudaEventRecord(resources_->forked.get(), stream), "cudaEventRecord");
    for (const SideStream &side : resources_->side)
        check(cudaStreamWaitEvent(side.stream.get(), resources_->forked.get(), 0), "cudaStreamWaitEvent");
}

void CudaDevice::join(cudaStream_t stream) {
    // Joins all side streams even if one fails: the memory that they use may be freed afterwards.
    cudaError_t first = cudaSuccess;
    const auto note = [&](cudaError_t error) { first = first == cudaSuccess ? error : first; };
    for (const SideStream &side : resources_->side) {
        note(cudaEventRecord(side.done.get(), side.stream.get()));
        note(cudaStreamWaitEvent(stream, side.done.get(), 0));
    }
    check(first, "cudaStreamWaitEvent");
}

namespace {

// Returns the runtime's error for the number of devices; `count` is 0 if there is one.
cudaError_t count_devices(int &count) {
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess)
        return count > 0 ? cudaSuccess : cudaErrorNoDevice;
    cudaGetLastError();
    count = 0;
    return error;
}

// True if no driver is installed. The runtime reports a missing driver as one that is too old.
bool driver_is_missing() {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version == 0;
}

} // namespace

const char *cuda_versions() noexcept {
    static const auto text = []() noexcept {
        int runtime = 0, driver = 0;
        cudaRuntimeGetVersion(&runtime);
        cudaDriverGetVersion(&driver);
        std::array<char, 64> line{};
        std::snprintf(line.data(), line.size(), driver != 0 ? "%d.%d (driver for %d.%d)" : "%d.%d (no driver)",
                      runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
        return line;
    }();
    return text.data();
}

int cuda_device_count() {
    int count = 0;
    count_devices(count);
    return count;
}

std::unique_ptr<Device> make_cuda_device(int index) {
    int count = 0;
    if (const cudaError_t error = count_devices(count); error != cudaSuccess)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no CUDA device: %s",
                    driver_is_missing() ? "no CUDA driver is installed" : cudaGetErrorString(error));
    return std::make_unique<CudaDevice>(index);
}

} // namespace annulus
