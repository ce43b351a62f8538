// SPDX-License-Identifier: Apache-2.0
// One forward and backward call through the public API, with everything about it watched: outputs and workspace are
// NaN before, guards, gaps and inputs must be as they were after.
#pragma once

#include "support/problem.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

// Values in the order of the tensors' shapes; representable in the dtype they were made for.
struct Inputs {
    std::vector<double> q, k, v, d_out;
    std::vector<double> d_lse; // empty: none is passed
};

struct Results {
    std::vector<double> out, lse;
    std::vector<double> d_q, d_k, d_v; // empty when there was no backward call
};

// Normally distributed values.
Inputs random_inputs(const Problem &problem, std::uint64_t seed, bool with_d_lse = true);

struct RunOptions {
    annulus_engine engine = ANNULUS_ENGINE_CPU;
    int threads = 2;
    bool backward = true;
};

// Throws with the library's message when a call fails, and when anything but the outputs' elements was written.
Results run(const Problem &problem, const Inputs &inputs, const RunOptions &options = {});

// The reference engine's results in float64 for the same values.
Results run_exact(const Problem &problem, const Inputs &inputs, bool backward = true);

} // namespace annulus::test
