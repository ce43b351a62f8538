// SPDX-License-Identifier: Apache-2.0
// How the fused forward kernel takes a plan: in passes over some branches each, one if it can be.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/forward_launch.hpp"

#include <vector>

namespace annulus {

// All but pointers and tensor maps. The plan's positions and dilations are below position_limit. Branches of a pass have
// dilations that divide one another, and do not mix the query rules `dilated` and `residue`.
std::vector<ForwardPass> make_forward_passes(const Plan &plan);

// Tiles of all passes' grids may be too many for their 32-bit numbers.
bool has_too_many_tiles(const std::vector<ForwardPass> &passes);

} // namespace annulus
