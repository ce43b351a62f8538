// SPDX-License-Identifier: Apache-2.0
// The attention mass of keys from the definition, pair by pair.
#pragma once

#include "support/run.hpp"

#include <vector>

namespace annulus::test {

// In float64, [B, H, N].
std::vector<double> mass_by_definition(const Problem &problem, const Inputs &inputs);

// Fails the running test where a mass is further from `exact` than the dtype explains, or where nobody attends to a key
// that has one.
void expect_mass(const Problem &problem, const std::vector<double> &mass, const std::vector<double> &exact);

} // namespace annulus::test
