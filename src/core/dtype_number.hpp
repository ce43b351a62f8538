// SPDX-License-Identifier: Apache-2.0
// Dtypes by their number. Numbers and not enumerators, because a C caller may hand over any int, and reading one that
// is no enumerator as the enumeration would be undefined in C++.
#pragma once

#include <annulus/tensor.h>

#include <cstring>

namespace annulus {

// The number behind an enumeration that a C caller filled.
template <class Enum> int enum_value(const Enum &value) {
    static_assert(sizeof(Enum) == sizeof(int));
    int number;
    std::memcpy(&number, &value, sizeof number);
    return number;
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
