// SPDX-License-Identifier: Apache-2.0
// The state of a row's running softmax, in units of log2: x the largest score m, y the sum l of 2^(score - m).
#pragma once

#include <cuda_runtime_api.h>

#include <limits>

namespace annulus {

// Of a row that has met no key.
constexpr float2 empty_state() {
    return {-std::numeric_limits<float>::infinity(), 0.f};
}

// Of a row whose results stand in the caller's tensors already; l < 0 is no sum.
constexpr float2 finished_state() {
    return {0.f, -1.f};
}

} // namespace annulus
