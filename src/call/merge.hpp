// SPDX-License-Identifier: Apache-2.0
// Merges results over different keys into one.
#pragma once

#include "call/context.hpp"
#include "core/plan.hpp"

#include <annulus/tensor.h>

namespace annulus {

// The arguments of a merge, each checked by itself. `problem` has the sizes of the results.
struct MergeArguments {
    Problem problem;
    std::int32_t count;
    const annulus_tensor *outs, *lses; // [count]
    const annulus_tensor &out;
    const annulus_tensor *lse; // may be null
};

// Checks what concerns several arguments, then merges. No other rank takes part.
void run_merge(annulus_context &context, const MergeArguments &arguments);

} // namespace annulus
