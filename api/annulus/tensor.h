/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors are views of the caller's memory. annulus does not own them, and keeps neither them nor copies of them beyond
 * a call.
 *
 * These letters are used throughout:
 *
 *   B  batch
 *   N  sequence length
 *   H  query heads
 *   G  key/value heads; G divides H, and query head h reads key/value head h / (H/G)
 *   D  head dimension, a multiple of 8 from 8 to 256
 */
#ifndef ANNULUS_TENSOR_H
#define ANNULUS_TENSOR_H

#include <annulus/export.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* The type of a tensor's elements. */
typedef enum annulus_dtype ANNULUS_ENUM_INT32 {
    ANNULUS_DTYPE_NONE = 0, /* no dtype, for structs that may leave the dtype out */
    ANNULUS_FLOAT64 = 1,    /* IEEE binary64, C's double */
    ANNULUS_FLOAT32 = 2,    /* IEEE binary32, C's float */
    ANNULUS_BFLOAT16 = 3,   /* 1 sign, 8 exponent, 7 fraction bits */
    ANNULUS_FLOAT16 = 4     /* IEEE binary16 */
} annulus_dtype;

/*
 * A tensor of `ndim` dimensions. Element (i0, i1, …) lies at data[i0 * stride[0] + i1 * stride[1] + …]. Strides count
 * elements and are not negative. Entries of shape and stride at or beyond `ndim` are not read.
 *
 *   Q, K, V, O and their gradients: ndim 4, [B, N, heads, D], stride[3] == 1.
 *   LSE and its gradient:           ndim 3, [B, H, N], any strides; float32, or float64 when Q is float64.
 *
 * `data` must be aligned to the size of an element of `dtype`. Inputs may overlap one another and may repeat rows
 * (stride 0). The elements of an output must be distinct, and an output must not overlap an input or another output.
 * Tensors with equal strides may interleave: a packed [B, N, 3, H, D] buffer of dQ, dK and dV is legal.
 */
typedef struct annulus_tensor {
    void *data;
    annulus_dtype dtype;
    int32_t ndim;
    int64_t shape[4];
    int64_t stride[4];
} annulus_tensor;

/*
 * Returns the number of bits of one element: 64 for float64, 32 for float32, 16 for bfloat16 and float16. Returns 0 for
 * every other value. Any thread. Since 1.0.
 */
ANNULUS_API int annulus_dtype_bits(annulus_dtype dtype);

/*
 * Returns the name of a dtype ("float64", "float32", "bfloat16", "float16"), or "unknown". Static. Any thread.
 * Since 1.0.
 */
ANNULUS_API const char *annulus_dtype_name(annulus_dtype dtype);

ANNULUS_END_DECLS

#endif
