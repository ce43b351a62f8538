// SPDX-License-Identifier: Apache-2.0
// The four dtypes as the tests see them: every value is a double, rounded to the dtype and written in its bytes here,
// with nothing of the library.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>

namespace annulus::test {

// The nearest value of the dtype, ties to even; beyond its range an infinity.
double round_to(annulus_dtype dtype, double value);

// Writes the nearest value of the dtype at `memory`, which needs no alignment; reads one.
void store(annulus_dtype dtype, void *memory, double value);
double load(annulus_dtype dtype, const void *memory);

std::size_t bytes_of(annulus_dtype dtype);

// The distance from 1 to the next larger value.
double rounding_unit(annulus_dtype dtype);

// The dtype of LSE and its gradient beside tensors of `dtype`.
annulus_dtype statistics_dtype(annulus_dtype dtype);

} // namespace annulus::test
