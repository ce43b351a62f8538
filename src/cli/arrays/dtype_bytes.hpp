// SPDX-License-Identifier: Apache-2.0
// Returns the bytes of a number in files and memory.
#pragma once

#include <annulus/tensor.h>

namespace annulus::cli {

inline int dtype_bytes(annulus_dtype dtype) {
    return annulus_dtype_bits(dtype) / 8;
}

} // namespace annulus::cli
