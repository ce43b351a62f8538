// SPDX-License-Identifier: Apache-2.0
// Batched matrix products through cuBLAS: C = A B or C + A B. Matrices are row-major, given by arrays of pointers in
// device memory. Row pitches are in elements.
#pragma once

#include <annulus/tensor.h>
#include <cublas_v2.h>

#include <cstdint>

namespace annulus {

struct Matrices {
    void *const *pointers; // [count], device memory
    std::int64_t pitch;
    bool transposed = false; // stored as [columns, rows]
    bool is_float32 = false; // otherwise of the product's dtype
};

// Runs on the handle's stream. A and B have `dtype`; C has it, too, or is float32. Sums are float32. float32 products
// are exact float32 unless `allow_tf32`.
struct ProductType {
    cublasHandle_t handle;
    annulus_dtype dtype;
    bool allow_tf32;
};

// Computes products of A [rows, inner] and B [inner, columns] into C [rows, columns].
void multiply(const ProductType &type, std::int64_t count, std::int64_t rows, std::int64_t columns, std::int64_t inner,
              const Matrices &a, const Matrices &b, bool adds, const Matrices &c);

} // namespace annulus
