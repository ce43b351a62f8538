// SPDX-License-Identifier: Apache-2.0
// The steps of a backward call, after its grids and partial results are decided.
#pragma once

#include "cuda/fused/plan/backward_plan.hpp"

namespace annulus {

// Sets `steps` and `first_of_rest` of `result` from its other members.
void write_steps(const Plan &plan, KeyScope scope, const BackwardShapes &shapes, BackwardPlan &result);

} // namespace annulus
