// SPDX-License-Identifier: Apache-2.0
// A thread's elements of one product as an operand of the next product: pairs of 16-bit elements, or 32-bit elements as
// they are.
#pragma once

#include "cuda/fused/math/fragment.cuh"

#include <cstdint>

namespace annulus::mma {

// A float32 number whose products may be computed in TF32.
struct Tf32 {
    float value;
};

// Element i is d[i] of FragmentThread.
template <class Element, int count, int element_bytes = sizeof(Element)> struct Operand;
template <class Element, int count> struct Operand<Element, count, 2> {
    std::uint32_t pairs[count / 2];

    // Sets elements i and i + 1, for even i.
    __device__ __forceinline__ void set_two(int i, const float2 &two) {
        pairs[i / 2] = pack_two<Element>(two.x, two.y);
    }
    __device__ __forceinline__ float2 two(int i) const { return unpack_two<Element>(pairs[i / 2]); }
};
template <class Element, int count> struct Operand<Element, count, 4> {
    float elements[count];

    __device__ __forceinline__ void set_two(int i, const float2 &two) {
        elements[i] = two.x;
        elements[i + 1] = two.y;
    }
    __device__ __forceinline__ float2 two(int i) const { return {elements[i], elements[i + 1]}; }
};

template <class Element, int count>
__device__ __forceinline__ void set_operand(Operand<Element, count> &operand, const float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; i += 2)
        operand.set_two(i, {x[i], x[i + 1]});
}

} // namespace annulus::mma
