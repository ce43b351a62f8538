// SPDX-License-Identifier: Apache-2.0
// A CUDA device as a context uses it: memory from the pool that contexts share, and side streams. Side streams are
// internal, have a cuBLAS handle each, and run independent parts of a call at the same time.
#pragma once

#include "cuda/device/cuda_handle.hpp"
#include "cuda/device/shared_device.hpp"
#include "engine/device.hpp"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <optional>

namespace annulus {

class CudaDevice final : public Device, public DeviceStreams {
  public:
    static constexpr int side_streams = 2;

    explicit CudaDevice(int index);
    // Does not wait. Work that streams and events were given is still done, and memory is freed in the order of a
    // stream.
    ~CudaDevice() override;

    void *allocate(std::size_t bytes, void *stream) override;
    void release(void *memory, void *stream) noexcept override;
    void check_memory(const char *name, const void *pointer) const override;
    void enter() override;
    void leave() noexcept override;
    int index() const override { return index_; }
    void copy(void *to, const void *from, std::size_t bytes, void *stream) override;
    DeviceStreams *streams() override { return this; }

    void *comm_stream() override { return resources_->comm.get(); }
    void *record(void *stream) override;
    void wait(void *stream, void *event) override;
    void admit_peers() override;
    bool is_capturing(void *stream) const override;

    int compute_capability() const { return compute_capability_; } // 10 * major + minor
    int multiprocessors() const { return multiprocessors_; }
    int most_shared_bytes() const { return most_shared_bytes_; } // bytes of shared memory that a thread block can have
    // Returns the cycles of all multiprocessors together while memory moves a byte, or 0 if the driver does not tell.
    // The first call asks the driver, which may take it long.
    double cycles_per_byte() const;

    cudaStream_t stream(int side) const { return resources_->side[static_cast<std::size_t>(side)].stream.get(); }
    // Returns the handle that is bound to this side stream.
    cublasHandle_t blas(int side) const { return resources_->side[static_cast<std::size_t>(side)].blas.get(); }

    // After fork(), the side streams wait for all earlier work of `stream`. After join(), `stream` waits for all
    // earlier work of the side streams. Both may be called while `stream` is being captured.
    void fork(cudaStream_t stream);
    void join(cudaStream_t stream);

  private:
    struct SideStream {
        Stream stream;
        Event done;
        BlasUse blas;
        explicit SideStream(SharedDevice &shared);
    };
    // Resources that must be made and destroyed while the device is current.
    struct DeviceResources {
        std::unique_ptr<PoolUse> pool;
        Event forked;
        std::array<SideStream, side_streams> side;
        Stream comm;
        std::array<Event, 128> events; // each is made when it is first recorded
        explicit DeviceResources(SharedDevice &shared);
    };

    int index_;
    int compute_capability_ = 0;
    int multiprocessors_ = 0;
    int most_shared_bytes_ = 0;
    mutable std::optional<double> cycles_per_byte_;
    std::unique_ptr<DeviceResources> resources_;
    std::size_t next_event_ = 0;
    std::optional<CurrentDevice> current_; // set between enter() and leave()
};

// Returns the device of a context on CUDA.
inline CudaDevice &cuda_device(Device &device) {
    return static_cast<CudaDevice &>(device);
}

// Returns the versions of the CUDA runtime and driver, as text.
const char *cuda_versions() noexcept;

// Returns how many CUDA devices this process can use.
int cuda_device_count();

// Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the reason if there is no CUDA device.
std::unique_ptr<Device> make_cuda_device(int index);

} // namespace annulus
