// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/cuda_yardsticks.hpp"

#include "cli/arrays/dtype_bytes.hpp"
#include "cli/devices/cuda_check.hpp"
#include "cli/devices/random_numbers.hpp"

#include <type_traits>

namespace annulus::cli {

namespace {

constexpr int size = 8192; // of the square matrices
constexpr std::int64_t elements = std::int64_t{size} * size;
constexpr std::int64_t copied_bytes = std::int64_t{1} << 30;

struct DestroyHandle {
    void operator()(cublasHandle_t handle) const { cublasDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cublasHandle_t>, DestroyHandle>;

Handle make_handle(cudaStream_t stream) {
    cublasHandle_t handle = nullptr;
    check_cublas(cublasCreate(&handle), "start");
    Handle owner(handle);
    check_cublas(cublasSetStream(handle, stream), "use a stream");
    return owner;
}

cudaDataType_t data_type(annulus_dtype dtype) {
    switch (dtype) {
    case ANNULUS_FLOAT32:
        return CUDA_R_32F;
    case ANNULUS_BFLOAT16:
        return CUDA_R_16BF;
    case ANNULUS_FLOAT16:
        return CUDA_R_16F;
    case ANNULUS_FLOAT64:
        break;
    }
    throw bad_input(std::string("--dtype ") + annulus_dtype_name(dtype) +
                    ": on CUDA it must be float32, bfloat16 or float16");
}

struct Product {
    Handle handle;
    cudaDataType_t type;
    cublasComputeType_t compute;
    Allocation a, b, c;

    void multiply() const {
        const float one = 1, zero = 0;
        check_cublas(cublasGemmEx(handle.get(), CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, &one, a.get(), type, size,
                                  b.get(), type, size, &zero, c.get(), type, size, compute, CUBLAS_GEMM_DEFAULT),
                     "multiply matrices");
    }
};

Allocation random_allocation(Memory &memory, RandomNumbers &numbers, std::int64_t count, std::size_t element) {
    Allocation allocation = memory.allocate(static_cast<std::size_t>(count) * element);
    numbers.fill(memory, allocation.get(), count);
    return allocation;
}

} // namespace

Yardstick gemm_yardstick(Memory &memory, cudaStream_t stream, annulus_dtype dtype, bool allow_tf32) {
    const bool tf32 = dtype == ANNULUS_FLOAT32 && allow_tf32;
    const cudaDataType_t type = data_type(dtype);
    const auto element = static_cast<std::size_t>(dtype_bytes(dtype));
    RandomNumbers numbers(dtype);
    const auto product = std::make_shared<Product>(
        Product{make_handle(stream), type, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                random_allocation(memory, numbers, elements, element),
                random_allocation(memory, numbers, elements, element), memory.allocate(elements * element)});
    const std::string n = std::to_string(size);
    return {"gemm",
            n + " x " + n + " x " + n + ", " + annulus_dtype_name(dtype) + (tf32 ? " as TF32" : "") + ", cuBLAS",
            Yardstick::flops,
            2.0 * size * size * size,
            [product] { product->multiply(); },
            {}};
}

Yardstick copy_yardstick(Memory &memory, cudaStream_t stream) {
    RandomNumbers numbers(ANNULUS_FLOAT32);
    const std::shared_ptr<std::byte> from = random_allocation(memory, numbers, copied_bytes / 4, 4);
    const std::shared_ptr<std::byte> to = memory.allocate(copied_bytes);
    return {"copy",
            "1 GiB within the device's memory, bytes read and written",
            Yardstick::bytes,
            2.0 * copied_bytes,
            [from, to, stream] {
                check_cuda(cudaMemcpyAsync(to.get(), from.get(), copied_bytes, cudaMemcpyDeviceToDevice, stream),
                           "copy within the device's memory");
            },
            {}};
}

} // namespace annulus::cli
