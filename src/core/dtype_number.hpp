// SPDX-License-Identifier: Apache-2.0
// Dtypes by their number. A C caller may hand over any number; the enumerations of the API can hold each.
#pragma once

#include <annulus/tensor.h>

#include <cstdint>
#include <type_traits>

namespace annulus {

// The number behind an enumeration of the API, an enumerator's or not.
template <class Enum> constexpr std::int32_t enum_value(Enum value) {
    static_assert(std::is_same_v<std::underlying_type_t<Enum>, std::int32_t>);
    return value;
}

// Bytes of one element; 0 for a number that is no dtype.
inline int dtype_bytes(int dtype) {
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return 8;
    case ANNULUS_FLOAT32:
        return 4;
    case ANNULUS_BFLOAT16:
    case ANNULUS_FLOAT16:
        return 2;
    default:
        return 0;
    }
}

// The dtype of sums over tensors of a dtype, and of LSE.
constexpr annulus_dtype sum_dtype(annulus_dtype dtype) {
    return dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32;
}

inline const char *dtype_name(int dtype) {
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return "float64";
    case ANNULUS_FLOAT32:
        return "float32";
    case ANNULUS_BFLOAT16:
        return "bfloat16";
    case ANNULUS_FLOAT16:
        return "float16";
    default:
        return "unknown";
    }
}

} // namespace annulus
