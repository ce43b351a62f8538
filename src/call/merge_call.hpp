// SPDX-License-Identifier: Apache-2.0
// A call that merges results over different keys, from checked arguments to the device.
#pragma once

#include "call/context.hpp"
#include "core/plan.hpp"

#include <annulus/tensor.h>

namespace annulus {

// What the caller's arguments say, checked each for itself. The problem has the sizes of the results.
struct CheckedMerge {
    Problem problem;
    std::int32_t count;
    const annulus_tensor *outs, *lses; // [count]
    const annulus_tensor &out;
    const annulus_tensor *lse; // may be null
};

// Checks what concerns several arguments, and runs it. No other rank takes part.
void run_merge(annulus_context &context, const CheckedMerge &call);

} // namespace annulus
