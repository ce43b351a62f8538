// SPDX-License-Identifier: Apache-2.0
// Reads and writes the header of a .npy file: dtype and shape of the C-ordered numbers that follow it.
// Format: NumPy's own specification, numpy.lib.format, versions 1.0 to 3.0.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::cli {

struct NpyHeader {
    annulus_dtype dtype = ANNULUS_FLOAT32;
    std::vector<std::int64_t> shape;
    std::size_t data_offset = 0; // bytes from the start of the file

    std::size_t count() const;
    std::size_t data_bytes() const;
};

// Reads the header of a file whose bytes begin with `file`. Throws Failure with exit_bad_input; the message does not
// name the file. NumPy has no bfloat16: ml_dtypes saves it with the descr '<V2', and NumPy saves that again as '|V2'.
NpyHeader parse_npy_header(std::string_view file);

// The shape and the whole numbers of a file of int64 or int32. parse_npy_integers() throws like parse_npy_header().
struct NpyIntegers {
    std::vector<std::int64_t> shape, numbers;
};
NpyIntegers parse_npy_integers(std::string_view file);

// The same for a file of any float or integer dtype, converted to double. Integers beyond 2^53 are rounded.
struct NpyNumbers {
    std::vector<std::int64_t> shape;
    std::vector<double> numbers;
};
NpyNumbers parse_npy_numbers(std::string_view file);

// Returns the header's bytes. Their number, which is the offset of the data, is a multiple of 64.
std::string format_npy_header(annulus_dtype dtype, const std::vector<std::int64_t> &shape);

} // namespace annulus::cli
