// SPDX-License-Identifier: Apache-2.0
// Functions of a dtype's number. A C caller may pass any number, and the API's enumerations can hold any.
#pragma once

#include <annulus/tensor.h>

#include <cstdint>
#include <type_traits>

namespace annulus {

// Returns the number in an enumeration of the API, whether or not an enumerator has it.
template <class Enum> constexpr std::int32_t enum_value(Enum value) {
    static_assert(std::is_same_v<std::underlying_type_t<Enum>, std::int32_t>);
    return value;
}

// Returns the bytes of one element, or 0 if the number is no dtype.
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

// Returns the dtype of sums over tensors of `dtype`, which LSE has, too.
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
