// SPDX-License-Identifier: Apache-2.0
// The problems that several test programs of the engine `fused` compute, in its dtypes.
#pragma once

#include "engines/table.hpp"

#include <vector>

namespace annulus::test {

// Returns the problems in each dtype of the engine, without problems that it refuses.
std::vector<NamedProblem> in_subject_dtypes(const std::vector<NamedProblem> &problems);

// Returns rules, dilations, head ranges and windows for which the kernels have code of their own. Each is also causal
// and with zero keys.
std::vector<NamedProblem> patterns();

// Returns problems with and without sums in the workspace, several grids, orders along a curve, and heads that share
// keys.
std::vector<NamedProblem> some_patterns();

// Returns problems in which some row blocks of a cell meet far more keys than the rest.
std::vector<NamedProblem> split_problems();

// Returns problems whose dilations do not divide one another.
std::vector<NamedProblem> problems_of_several_grids();

} // namespace annulus::test
