// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/cuda_yardsticks.hpp"

#include "cli/arrays/dtype_bytes.hpp"
#include "cli/devices/loaded_library.hpp"
#include "cli/devices/random_numbers.hpp"

#include <memory>
#include <string>
#include <utility>

namespace annulus::cli {

namespace {

constexpr int size = 8192; // of the square matrices
constexpr std::int64_t elements = std::int64_t{size} * size;
constexpr std::int64_t copied_bytes = std::int64_t{1} << 30;

// The cuBLAS that the library's CUDA plugin has loaded. These declarations have not changed since CUDA 11.
class Cublas {
  public:
    using Status = int; // cublasStatus_t
    using Handle = struct CublasHandle *;
    enum DataType { float32 = 0, float16 = 2, bfloat16 = 14 }; // cudaDataType
    enum Compute { in_float32 = 68, in_tf32 = 77 };            // cublasComputeType_t
    static constexpr int not_transposed = 0, default_algorithm = -1;

    Cublas() {
        const std::string wanted = "bench compares with a matrix product of cuBLAS";
        const LoadedLibrary plugin(ANNULUS_CUDA_PLUGIN, wanted);
        void *(*cublas)();
        plugin.find(cublas, "annulus_cublas_of_plugin");
        const LoadedLibrary library("cuBLAS", cublas(), wanted);
        library.find(create, "cublasCreate_v2");
        library.find(destroy, "cublasDestroy_v2");
        library.find(set_stream, "cublasSetStream_v2");
        library.find(gemm, "cublasGemmEx");
        library.find(status_text, "cublasGetStatusString");
    }

    void check(Status status, const std::string &action) const {
        if (status != 0)
            throw Failure(exit_failed, "cuBLAS cannot " + action + ": " + status_text(status));
    }

    Status (*create)(Handle *handle);
    Status (*destroy)(Handle handle);
    Status (*set_stream)(Handle handle, CudaDriver::Stream stream);
    Status (*gemm)(Handle handle, int transposed_a, int transposed_b, int m, int n, int k, const void *alpha,
                   const void *a, DataType type_a, int lda, const void *b, DataType type_b, int ldb, const void *beta,
                   void *c, DataType type_c, int ldc, Compute compute, int algorithm);
    const char *(*status_text)(Status status);
};

Cublas::DataType data_type(annulus_dtype dtype) {
    switch (dtype) {
    case ANNULUS_FLOAT32:
        return Cublas::float32;
    case ANNULUS_BFLOAT16:
        return Cublas::bfloat16;
    case ANNULUS_FLOAT16:
        return Cublas::float16;
    case ANNULUS_FLOAT64:
    case ANNULUS_DTYPE_NONE:
        break;
    }
    throw bad_input(std::string("--dtype ") + annulus_dtype_name(dtype) +
                    ": on CUDA it must be float32, bfloat16 or float16");
}

// The product C = A B of square matrices.
class Product {
  public:
    Product(CudaDriver::Stream stream, Cublas::DataType type, Cublas::Compute compute, Allocation a, Allocation b,
            Allocation c)
        : type_(type), compute_(compute), a_(std::move(a)), b_(std::move(b)), c_(std::move(c)) {
        cublas_.check(cublas_.create(&handle_), "start");
        cublas_.check(cublas_.set_stream(handle_, stream), "use a stream");
    }
    ~Product() { cublas_.destroy(handle_); }
    Product(const Product &) = delete;
    Product &operator=(const Product &) = delete;

    void multiply() const {
        const float one = 1, zero = 0;
        cublas_.check(cublas_.gemm(handle_, Cublas::not_transposed, Cublas::not_transposed, size, size, size, &one,
                                   a_.get(), type_, size, b_.get(), type_, size, &zero, c_.get(), type_, size, compute_,
                                   Cublas::default_algorithm),
                      "multiply matrices");
    }

  private:
    Cublas cublas_;
    Cublas::Handle handle_ = nullptr;
    Cublas::DataType type_;
    Cublas::Compute compute_;
    Allocation a_, b_, c_;
};

Allocation random_allocation(Memory &memory, RandomNumbers &numbers, std::int64_t count, std::size_t element) {
    Allocation allocation = memory.allocate(static_cast<std::size_t>(count) * element);
    numbers.fill(memory, allocation.get(), count);
    return allocation;
}

} // namespace

Yardstick gemm_yardstick(Memory &memory, CudaDriver::Stream stream, annulus_dtype dtype, bool allow_tf32) {
    const bool tf32 = dtype == ANNULUS_FLOAT32 && allow_tf32;
    const auto element = static_cast<std::size_t>(dtype_bytes(dtype));
    const Cublas::DataType type = data_type(dtype);
    RandomNumbers numbers(dtype);
    const auto product = std::make_shared<Product>(stream, type, tf32 ? Cublas::in_tf32 : Cublas::in_float32,
                                                   random_allocation(memory, numbers, elements, element),
                                                   random_allocation(memory, numbers, elements, element),
                                                   memory.allocate(elements * element));
    const std::string n = std::to_string(size);
    return {"gemm",
            n + " x " + n + " x " + n + ", " + annulus_dtype_name(dtype) + (tf32 ? " as TF32" : "") + ", cuBLAS",
            Yardstick::flops,
            2.0 * size * size * size,
            [product] { product->multiply(); },
            {}};
}

Yardstick copy_yardstick(Memory &memory, CudaDriver::Stream stream) {
    RandomNumbers numbers(ANNULUS_FLOAT32);
    const std::shared_ptr<std::byte> from = random_allocation(memory, numbers, copied_bytes / 4, 4);
    const std::shared_ptr<std::byte> to = memory.allocate(copied_bytes);
    return {"copy",
            "1 GiB within the device's memory, bytes read and written",
            Yardstick::bytes,
            2.0 * copied_bytes,
            [from, to, stream] {
                const CudaDriver &driver = cuda_driver();
                driver.check(driver.copy_within(address_of(to.get()), address_of(from.get()), copied_bytes, stream),
                             "copy within the device's memory");
            },
            {}};
}

} // namespace annulus::cli
