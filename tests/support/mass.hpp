// SPDX-License-Identifier: Apache-2.0
// Computes the attention mass of keys from the definition, pair by pair.
#pragma once

#include "support/run.hpp"

#include <vector>

namespace annulus::test {

// Returns the masses in float64, [B, H, N].
std::vector<double> mass_by_definition(const Problem &problem, const Inputs &inputs);

// Fails the running test if a mass differs from `exact` by more than the dtype explains. A key that no query attends to
// must have no mass.
void expect_mass(const Problem &problem, const std::vector<double> &mass, const std::vector<double> &exact);

} // namespace annulus::test
