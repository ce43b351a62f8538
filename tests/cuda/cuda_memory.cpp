// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_memory.hpp"

#include <stdexcept>
#include <string>

namespace annulus::test {

namespace {

// Makes a device the thread's current one during the lifetime of the object.
class CurrentDevice {
  public:
    explicit CurrentDevice(int index) {
        check_cuda(cudaGetDevice(&previous_));
        check_cuda(cudaSetDevice(index));
    }
    ~CurrentDevice() { cudaSetDevice(previous_); }
    CurrentDevice(const CurrentDevice &) = delete;
    CurrentDevice &operator=(const CurrentDevice &) = delete;

  private:
    int previous_ = 0;
};

} // namespace

void check_cuda(cudaError_t status) {
    if (status != cudaSuccess)
        throw std::runtime_error(std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status));
}

CudaMemory::~CudaMemory() {
    if (stream_)
        cudaStreamDestroy(stream_);
}

cudaStream_t CudaMemory::cuda_stream() const {
    if (order_ == Order::own_stream)
        std::call_once(once_, [this] {
            const CurrentDevice current(index_);
            check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        });
    return stream_;
}

void *CudaMemory::allocate(std::size_t bytes) {
    const CurrentDevice current(index_);
    void *data = nullptr;
    check_cuda(cudaMalloc(&data, bytes));
    return data;
}

void CudaMemory::release(void *data) noexcept {
    cudaFree(data);
}

void CudaMemory::fill(void *data, unsigned char value, std::size_t bytes) {
    check_cuda(cudaMemsetAsync(data, value, bytes, cuda_stream()));
}

void CudaMemory::upload(void *to, const void *from, std::size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda_stream()));
}

void CudaMemory::download(void *to, const void *from, std::size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cuda_stream()));
    check_cuda(cudaStreamSynchronize(cuda_stream()));
}

} // namespace annulus::test
