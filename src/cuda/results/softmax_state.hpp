// SPDX-License-Identifier: Apache-2.0
// The state of a row's running softmax, in units of log2: x the largest score m, y the sum l of 2^(score - m). A row
// that has met keys, but all of the score -infinity, has l = -0: its result is NaN, not that of a row without keys.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>

namespace annulus {

// Of a row that has met no key.
constexpr float2 empty_state() {
    return {-std::numeric_limits<float>::infinity(), 0.f};
}

// A sum of 2^(score - m) that has become 0, of a row that has met keys (`met_keys`) or not.
__host__ __device__ inline float sum_of_none(bool met_keys) {
    return met_keys ? -0.f : 0.f;
}

// What divides O, and is added to m to be LSE: 1 / l and log2(l), of rows without keys 0 and -infinity.
__host__ __device__ inline float inverse_sum(float l) {
    return l != 0.f ? 1 / l : (std::signbit(l) ? std::numeric_limits<float>::quiet_NaN() : 0.f);
}
__host__ __device__ inline float log2_of_sum(float l) {
    return l != 0.f || !std::signbit(l) ? log2f(l) : std::numeric_limits<float>::quiet_NaN();
}

// Of a row whose results stand in the caller's tensors already; l < 0 is no sum.
constexpr float2 finished_state() {
    return {0.f, -1.f};
}

} // namespace annulus
