// SPDX-License-Identifier: Apache-2.0
// annulus/tensor.h.
#include "core/dtype_number.hpp"

#include <annulus/tensor.h>

int annulus_dtype_bits(annulus_dtype dtype) {
    return 8 * annulus::dtype_bytes(annulus::enum_value(dtype));
}

const char *annulus_dtype_name(annulus_dtype dtype) {
    return annulus::dtype_name(annulus::enum_value(dtype));
}
