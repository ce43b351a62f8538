// SPDX-License-Identifier: Apache-2.0
// The steps of a backward call whose grids and partial results are decided.
#pragma once

#include "cuda/fused/plan/backward_plan.hpp"

namespace annulus {

// Lists those of `result`, anew, by its other members.
void write_steps(const Plan &plan, CallPart part, const BackwardShapes &shapes, BackwardPlan &result);

} // namespace annulus
