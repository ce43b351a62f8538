// SPDX-License-Identifier: Apache-2.0
// The state of a row's running softmax, in units of log2: x is the largest score m, y the sum l of 2^(score - m). A row
// that has only keys with the score -infinity has l = -0. Its result is NaN, unlike that of a row without keys.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>

namespace annulus {

// Returns the state of a row that has met no key.
constexpr float2 empty_state() {
    return {-std::numeric_limits<float>::infinity(), 0.f};
}

// Returns the sum of 2^(score - m) after it has become 0, for a row that has met keys or not.
__host__ __device__ inline float sum_of_none(bool has_met_keys) {
    return has_met_keys ? -0.f : 0.f;
}

// Return the factor of O, 1 / l, and the summand that makes LSE of m, log2(l). For rows without keys: 0 and -infinity.
__host__ __device__ inline float inverse_sum(float l) {
    return l != 0.f ? 1 / l : (std::signbit(l) ? std::numeric_limits<float>::quiet_NaN() : 0.f);
}
__host__ __device__ inline float log2_of_sum(float l) {
    return l != 0.f || !std::signbit(l) ? log2f(l) : std::numeric_limits<float>::quiet_NaN();
}

// Returns the state of a row whose results are already in the caller's tensors. It is marked by l < 0, which no sum is.
constexpr float2 finished_state() {
    return {0.f, -1.f};
}

} // namespace annulus
