// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device for tests, and other helpers for CUDA.
#pragma once

#include "support/memory.hpp"

#include <cuda_runtime_api.h>

#include <mutex>

namespace annulus::test {

// Throws with CUDA's error text unless `status` is success.
void check_cuda(cudaError_t status);

class CudaMemory : public Memory {
  public:
    enum class Order { legacy_stream, own_stream };

    // own_stream: a stream that does not wait for the legacy stream, made when it is first used.
    explicit CudaMemory(Order order = Order::own_stream, int index = 0) : order_(order), index_(index) {}
    ~CudaMemory() override;
    CudaMemory(const CudaMemory &) = delete;
    CudaMemory &operator=(const CudaMemory &) = delete;

    cudaStream_t cuda_stream() const;

    annulus_device device() const override { return ANNULUS_DEVICE_CUDA; }
    int index() const override { return index_; }
    void *stream() const override { return cuda_stream(); }
    void *allocate(std::size_t bytes) override;
    void release(void *data) noexcept override;
    void fill(void *data, unsigned char value, std::size_t bytes) override;
    void upload(void *to, const void *from, std::size_t bytes) override;
    void download(void *to, const void *from, std::size_t bytes) override;

  private:
    Order order_;
    int index_;
    mutable std::once_flag once_;
    mutable cudaStream_t stream_ = nullptr;
};

} // namespace annulus::test
