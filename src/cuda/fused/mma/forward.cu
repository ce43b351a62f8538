// SPDX-License-Identifier: Apache-2.0
// The kernels of one head dimension, ANNULUS_HEAD_DIM, and room, ANNULUS_ROOM.
#include "cuda/fused/mma/forward.cuh"

#include "cuda/fused/mma/kernels.hpp"

namespace annulus::mma {

namespace {

template <class Element> Kernel<ForwardParams> make() {
    using Traits = ForwardTraits<Element, ANNULUS_HEAD_DIM, Room::ANNULUS_ROOM>;
    return make_kernel<Traits, ForwardShared<Traits>>("mma forward", forward_kernel<Traits>);
}

} // namespace

template <> Kernel<ForwardParams> forward_kernel_of<Room::ANNULUS_ROOM, ANNULUS_HEAD_DIM>(annulus_dtype dtype) {
    if constexpr (has_bfloat16(Room::ANNULUS_ROOM))
        if (dtype == ANNULUS_BFLOAT16)
            return make<__nv_bfloat16>();
    return make<__half>();
}

} // namespace annulus::mma
