// SPDX-License-Identifier: Apache-2.0
// The compiler's portable vector types, for the sources that the build compiles once for each instruction set.
// ANNULUS_SIMD is the namespace of the set. Everything outside that namespace is local to the including source.
#pragma once

#include "cpu/simd/simd.hpp"

namespace annulus::ANNULUS_SIMD {

namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

// Properties of a floating-point type that the kernels use.
template <class T> struct Type;

template <> struct Type<float> {
    using Bits = std::uint32_t;
    typedef float Vector __attribute__((vector_size(vector_bytes)));
    typedef Bits BitsVector __attribute__((vector_size(vector_bytes)));
    static constexpr int fraction_bits = 23;
    static constexpr Bits bias = 127;
    static constexpr Bits exponent_mask = 0x7f800000;
    static constexpr int exp2_degree = 7;
};

template <> struct Type<double> {
    using Bits = std::uint64_t;
    typedef double Vector __attribute__((vector_size(vector_bytes)));
    typedef Bits BitsVector __attribute__((vector_size(vector_bytes)));
    static constexpr int fraction_bits = 52;
    static constexpr Bits bias = 1023;
    static constexpr Bits exponent_mask = 0x7ff0000000000000;
    static constexpr int exp2_degree = 13;
};

template <class T> using Vector = typename Type<T>::Vector;
template <class T> using BitsVector = typename Type<T>::BitsVector;
template <class T> constexpr int width = vector_bytes / static_cast<int>(sizeof(T));

template <class V, class T> inline V load(const T *source) {
    V v;
    __builtin_memcpy(&v, source, sizeof v);
    return v;
}

template <class V, class T> inline void store(T *target, V v) {
    __builtin_memcpy(target, &v, sizeof v);
}

} // namespace

// The set's matrix product, in product_kernels.cpp; see TileProduct.
template <class T> void multiply(const TileProduct<T> &product);

} // namespace annulus::ANNULUS_SIMD
