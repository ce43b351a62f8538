// SPDX-License-Identifier: Apache-2.0
// The four dtypes in the tests: every value is a double, rounded to the dtype and written in its bytes here.
// Independent of the library.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>

namespace annulus::test {

// Returns the nearest value of the dtype, ties to even; beyond its range an infinity.
double round_to(annulus_dtype dtype, double value);

// store() writes the nearest value of the dtype at `memory`, load() reads a value. The memory needs no alignment.
void store(annulus_dtype dtype, void *memory, double value);
double load(annulus_dtype dtype, const void *memory);

std::size_t bytes_of(annulus_dtype dtype);

// Returns the distance from 1 to the next larger value.
double rounding_unit(annulus_dtype dtype);

// Returns the dtype of LSE and its gradient for tensors of `dtype`.
annulus_dtype statistics_dtype(annulus_dtype dtype);

} // namespace annulus::test
