// SPDX-License-Identifier: Apache-2.0
// What the CPU computes beside the passes of its engines (engine/backend.hpp).
#pragma once

#include "engine/mass.hpp"
#include "engine/merge.hpp"

namespace annulus {

void merge_on_cpu(const MergeWork &work, int threads);
void mark_heads_on_cpu(const MassWork &work, int threads);
void take_mass_on_cpu(const MassWork &work, int threads);

} // namespace annulus
