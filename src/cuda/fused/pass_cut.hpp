// SPDX-License-Identifier: Apache-2.0
// One pass over all branches visits keys of nested branches once. But its cells are as short as the shortest segments:
// where a few units of a cell meet many times the keys of the others, these wait in most steps of their tile. Then two
// passes can take less time: one over the less dilated branches, which writes all rows, and one over the others, with
// longer cells, which adds to those of its own.
#pragma once

#include "cuda/fused/pass_plan.hpp"

#include <vector>

namespace annulus {

// Cuts the only one of `passes` in two, if that is expected to save time on the device.
void cut_pass(std::vector<PlannedPass> &passes, const Plan &plan, PassOf what, const PassShape &shape,
              int multiprocessors);

} // namespace annulus
