// SPDX-License-Identifier: Apache-2.0
// Matrix products of tiles. They use one thread and no memory of their own. A tile of C stays in registers while its
// rows of A are broadcast against rows of B. The operands are small enough for the caches and are not packed.
#include "cpu/simd/simd_vector.hpp"

namespace annulus::ANNULUS_SIMD {

namespace {

// Size of a tile of C. The sums, the vectors of a row of B and one broadcast element together fill the register file.
#if defined(__AVX512F__)
constexpr int tile_rows = 12, tile_vectors = 2; // of 32 registers
#elif defined(__AVX__)
constexpr int tile_rows = 6, tile_vectors = 2; // of 16
#elif defined(__aarch64__)
constexpr int tile_rows = 6, tile_vectors = 4; // of 32
#else
constexpr int tile_rows = 4, tile_vectors = 2; // of 16; a product takes one more
#endif

// Computes `rows` x (`vectors` of type V) of C from row i and column j on.
template <class V, int rows, int vectors, class T> void multiply_tile(const TileProduct<T> &x, int i, int j) {
    constexpr int width = static_cast<int>(sizeof(V) / sizeof(T));
    V sum[rows][vectors] = {};
    const std::int64_t a_row = x.a_row;
    const T *a = x.a + i * a_row, *b = x.b + j;
    for (int step = 0; step < x.k; ++step, a += x.a_column, b += x.n) {
        V b_row[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            b_row[v] = load<V>(b + v * width);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v)
                sum[r][v] += a[r * a_row] * b_row[v];
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
        T *c = x.c + static_cast<std::int64_t>(i + r) * x.n + j;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            store(c + v * width, x.adds ? load<V>(c + v * width) + sum[r][v]
                                        : x.factor * sum[r][v] + (sum[r][v] - sum[r][v])); // NaN if the sum is infinite
    }
}

// Computes all columns of `rows` rows of C.
template <int rows, class T> void multiply_rows(const TileProduct<T> &x, int i) {
    using V = Vector<T>;
    int j = 0;
    for (; j + tile_vectors * width<T> <= x.n; j += tile_vectors * width<T>)
        multiply_tile<V, rows, tile_vectors>(x, i, j);
    for (; j + width<T> <= x.n; j += width<T>)
        multiply_tile<V, rows, 1>(x, i, j);
    if constexpr (8 < width<T>) // n is a multiple of eight
        if (j < x.n) {
            typedef T Eight __attribute__((vector_size(8 * sizeof(T))));
            multiply_tile<Eight, rows, 1>(x, i, j);
        }
}

// Computes the last rows of C, which are fewer than the rows of a tile.
template <int rows, class T> void multiply_last_rows(const TileProduct<T> &x, int i) {
    if constexpr (rows > 0) {
        if (x.m - i == rows)
            multiply_rows<rows>(x, i);
        else
            multiply_last_rows<rows - 1>(x, i);
    }
}

} // namespace

template <class T> void multiply(const TileProduct<T> &x) {
    int i = 0;
    for (; i + tile_rows <= x.m; i += tile_rows)
        multiply_rows<tile_rows>(x, i);
    multiply_last_rows<tile_rows - 1>(x, i);
}

template void multiply(const TileProduct<float> &);
template void multiply(const TileProduct<double> &);

} // namespace annulus::ANNULUS_SIMD
