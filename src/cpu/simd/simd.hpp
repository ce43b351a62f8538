// SPDX-License-Identifier: Apache-2.0
// The arithmetic of attention on a CPU: products of tiles (product_kernels.cpp), and the operations between them
// (simd_kernels.cpp). Both sources are compiled for several instruction sets. The best set of this machine is chosen
// once. All functions run on the calling thread, allocate nothing and keep no state.
//
// Scores are stored transposed, S[key][query], `group_columns` queries wide. So a softmax over keys runs down the
// columns and needs no sum across a vector. Scores and maxima are in units of log2: P = 2^(S - m).
#pragma once

#include <annulus/tensor.h>

#include <cstdint>

namespace annulus {

// Number of queries in a tile of scores.
inline constexpr int group_columns = 32;

// Row-major C[m, n] = factor * A B, or with `adds` C + A B; n is a multiple of 8. Element (i, k) of A is
// a[i * a_row + k * a_column]. B is [k, n] and C is [m, n], both packed. Without `adds`, an element whose sum is
// infinite becomes NaN. The whole sum may be finite when a partial sum is not, and a score of -infinity would mean a
// hidden key.
template <class T> struct TileProduct {
    int m, n, k;
    const T *a;
    int a_row, a_column;
    const T *b;
    T *c;
    bool adds = false;
    T factor = 1;
};

// T is the type of accumulation: float, or double for float64 tensors.
template <class T> struct VectorKernels {
    void (*multiply)(const TileProduct<T> &product);
    // Reads n (a multiple of 8) elements of a row into T. Returns true if all of them are finite.
    bool (*load_row)(annulus_dtype dtype, const void *source, int n, T *target);
    // Writes factor * source as n (a multiple of 8) elements of dtype, rounded to nearest even.
    void (*store_row)(annulus_dtype dtype, const T *source, T factor, int n, void *target);
    // target += source; target *= factor; n is a multiple of 8.
    void (*add)(T *target, const T *source, int n);
    void (*scale)(T *target, T factor, int n);
    // Sum of a * b over n (a multiple of 8) elements.
    T (*dot)(const T *a, const T *b, int n);
    // Sets S[i][c] to `value` wherever key_position[i] - query_position[c] is not from -before to after.
    void (*mask)(T *scores, int keys, const std::int64_t *key_position, const std::int64_t *query_position,
                 std::int64_t before, std::int64_t after, T value);
    // Sets S[i][c] to `value` wherever key_class[i] == query_class[c].
    void (*mask_equal)(T *scores, int keys, const std::int64_t *key_class, const std::int64_t *query_class, T value);
    // Does so only where key_position[i] - query_position[c] is from -before to after.
    void (*mask_equal_near)(T *scores, int keys, const std::int64_t *key_class, const std::int64_t *query_class,
                            const std::int64_t *key_position, const std::int64_t *query_position, std::int64_t before,
                            std::int64_t after, T value);
    // Does one step of the running softmax. Replaces S by P = 2^(S - m'), where m' is the maximum of m and the tile.
    // Sets m = m', correction = 2^(m - m'), l = l * correction + sum of P. Returns true if any correction is not 1.
    bool (*softmax)(T *scores, int keys, T *m, T *l, T *correction);
    // Backward: replaces S by P = 2^(S - lse), and dP, unless it is null, by dS = factor * P * (dP - delta). If P is
    // 0, dS is 0 for any dP, NaN included.
    void (*gradient)(T *scores, T *d_probability, int keys, const T *lse, const T *delta, T factor);
};

// Returns the kernels for this machine. They are chosen when the library is loaded.
template <class T> const VectorKernels<T> &vector_kernels();

// Returns "baseline", "avx2" or "avx512". The text is static.
const char *simd_name();

} // namespace annulus
