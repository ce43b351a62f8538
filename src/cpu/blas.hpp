// SPDX-License-Identifier: Apache-2.0
// Matrix products for the CPU engine, on CBLAS.
//
// The engine's threads are its own, so every product must run on the thread that calls it; and the number of threads
// of a BLAS belongs to the process, which is not ours to change. OpenBLAS keeps a product on the calling thread when
// m * n * k is at most 65536 * GEMM_MULTITHREAD_THRESHOLD (4 unless it was built otherwise), whichever of its variants
// is loaded. So tiles are cut to that volume. It costs nothing: small products skip the packing of operands.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace annulus {

inline constexpr std::int64_t max_gemm_volume = 65536 * 4;

// Row-major C[m, n] = op(A) B + beta C, with C packed to ldc = n; op(A) is [m, k], B is [k, n], both packed.
// transpose_a: A is stored as [k, lda] with its first m columns in use, else as [m, k].
inline void gemm(bool transpose_a, int m, int n, int k, const float *a, int lda, const float *b, float beta, float *c) {
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, CblasNoTrans, m, n, k, 1.0F, a, lda, b, n, beta,
                c, n);
}
inline void gemm(bool transpose_a, int m, int n, int k, const double *a, int lda, const double *b, double beta,
                 double *c) {
    cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, CblasNoTrans, m, n, k, 1.0, a, lda, b, n, beta,
                c, n);
}

// The BLAS that was loaded, its version and threading, for bug reports. Static.
const char *blas_description();

} // namespace annulus
