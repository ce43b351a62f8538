// SPDX-License-Identifier: Apache-2.0
// Who serves a pass of a problem under a context, with what and how much memory.
#pragma once

#include "call/context.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <cstddef>

namespace annulus {

struct Service {
    Resources resources;
    const Engine &engine;
    std::size_t workspace_bytes;

    // On this rank alone. `tensors` are those of a call, if there is one.
    Service(const annulus_context &context, const Plan &plan, annulus_pass pass, const CallTensors &tensors = {});
    // Together with other ranks; rows that arrive from them suit every engine.
    Service(const annulus_context &context, const RingPlan &plan, annulus_pass pass, const CallTensors &tensors = {});

    std::size_t announced() const { return CallMemory::announced(workspace_bytes); }

  private:
    void check_limit(const annulus_context &context) const;
};

} // namespace annulus
