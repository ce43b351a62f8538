// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_place.hpp"

#include <stdexcept>
#include <string>

namespace annulus::test {

namespace {

// Makes a device the thread's current one for as long as it lives.
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

CudaPlace::~CudaPlace() {
    if (stream_)
        cudaStreamDestroy(stream_);
}

cudaStream_t CudaPlace::cuda_stream() const {
    if (order_ == Order::own_stream)
        std::call_once(once_, [this] {
            const CurrentDevice current(index_);
            check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        });
    return stream_;
}

void *CudaPlace::allocate(std::size_t bytes) {
    const CurrentDevice current(index_);
    void *memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes));
    return memory;
}

void CudaPlace::release(void *memory) noexcept {
    cudaFree(memory);
}

void CudaPlace::fill(void *memory, unsigned char value, std::size_t bytes) {
    check_cuda(cudaMemsetAsync(memory, value, bytes, cuda_stream()));
}

void CudaPlace::upload(void *to, const void *from, std::size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda_stream()));
}

void CudaPlace::download(void *to, const void *from, std::size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cuda_stream()));
    check_cuda(cudaStreamSynchronize(cuda_stream()));
}

} // namespace annulus::test
