// SPDX-License-Identifier: Apache-2.0
// Converts numbers from one dtype to another.
#pragma once

#include <annulus/tensor.h>

#include <cstddef>

namespace annulus::cli {

// Converts `count` numbers, rounding to nearest, ties to even. The source needs no alignment. Source and target must
// not overlap.
void convert(annulus_dtype to, void *target, annulus_dtype from, const void *source, std::size_t count);

} // namespace annulus::cli
