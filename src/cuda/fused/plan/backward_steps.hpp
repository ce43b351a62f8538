// SPDX-License-Identifier: Apache-2.0
// The steps of a backward call whose grids and partial results are decided.
#pragma once

#include "cuda/fused/plan/backward_plan.hpp"

namespace annulus {

// Sets steps and first_of_rest of `result` by its other members.
void write_steps(const Plan &plan, KeyScope scope, const BackwardShapes &shapes, BackwardPlan &result);

} // namespace annulus
