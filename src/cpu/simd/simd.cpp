// SPDX-License-Identifier: Apache-2.0
#include "cpu/simd/simd.hpp"

namespace annulus {

// Each instruction set for which the build compiled the kernels has a namespace.
#define ANNULUS_DECLARE_SET(set)                                                                                       \
    namespace set {                                                                                                    \
    extern const VectorKernels<float> float_kernels;                                                                   \
    extern const VectorKernels<double> double_kernels;                                                                 \
    }
ANNULUS_DECLARE_SET(simd_baseline)
#if defined(__x86_64__)
ANNULUS_DECLARE_SET(simd_avx2)
ANNULUS_DECLARE_SET(simd_avx512)
#endif

namespace {

struct Choice {
    const char *name;
    const VectorKernels<float> *single_precision;
    const VectorKernels<double> *double_precision;
};

Choice choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        return {"avx512", &simd_avx512::float_kernels, &simd_avx512::double_kernels};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return {"avx2", &simd_avx2::float_kernels, &simd_avx2::double_kernels};
#endif
    return {"baseline", &simd_baseline::float_kernels, &simd_baseline::double_kernels};
}

// Chosen when the library is loaded. If a first call chose, a child that is forked meanwhile would wait for it forever.
const Choice choice = choose();

} // namespace

template <> const VectorKernels<float> &vector_kernels<float>() {
    return *choice.single_precision;
}
template <> const VectorKernels<double> &vector_kernels<double>() {
    return *choice.double_precision;
}

const char *simd_name() {
    return choice.name;
}

} // namespace annulus
