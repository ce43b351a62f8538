// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/product.hpp"

#include "cuda/device/cublas_library.hpp"

namespace annulus {

namespace {

cudaDataType_t cuda_type(annulus_dtype dtype) {
    switch (dtype) {
    case ANNULUS_BFLOAT16:
        return CUDA_R_16BF;
    case ANNULUS_FLOAT16:
        return CUDA_R_16F;
    default:
        return CUDA_R_32F;
    }
}

} // namespace

void multiply(const ProductType &type, std::int64_t count, std::int64_t rows, std::int64_t columns, std::int64_t inner,
              const Matrices &a, const Matrices &b, bool adds, const Matrices &c) {
    const cudaDataType_t input = cuda_type(type.dtype);
    const cublasComputeType_t compute =
        type.dtype == ANNULUS_FLOAT32 && type.allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const float alpha = 1, beta = adds ? 1.f : 0.f;
    // cuBLAS is column-major: compute the transposed product, with the factors exchanged.
    const auto operation = [](const Matrices &m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    check(cublas().gemm_batched_ex_64(type.handle, operation(b), operation(a), columns, rows, inner, &alpha, b.pointers,
                                      input, b.pitch, a.pointers, input, a.pitch, &beta, c.pointers,
                                      c.is_float32 ? CUDA_R_32F : input, c.pitch, count, compute, CUBLAS_GEMM_DEFAULT),
          "cublasGemmBatchedEx");
}

} // namespace annulus
