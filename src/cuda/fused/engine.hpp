// SPDX-License-Identifier: Apache-2.0
// The entries of the engines `fused` and `mma`. A plugin defines an entry only if it was built for its GPUs.
#pragma once

#include "engine/engine.hpp"

namespace annulus {

extern const Engine fused_engine; // compute capability 9.0
extern const Engine mma_engine;   // GPUs with tensor cores

} // namespace annulus
