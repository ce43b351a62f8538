// SPDX-License-Identifier: Apache-2.0
// Calls of the engine `fused`, and who answered them.
#pragma once

#include "cuda/cuda_memory.hpp"
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace annulus::test {

inline void PrintTo(const NamedProblem &named, std::ostream *out) {
    *out << named.problem;
}
std::string name_of_problem(const testing::TestParamInfo<NamedProblem> &info);

struct TensorOfCall {
    const char *name;
    annulus_tensor Call::Arguments::*tensor;
};

constexpr annulus_pass passes[] = {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD};

// Where the subject's tensors lie.
CudaMemory &device_memory();
Context context_for(const Problem &problem, annulus_engine engine);
annulus_status compute(const Call &call, annulus_pass pass, const Context &context);
annulus_engine last_engine(const Context &context);

// subject(); forward alone for a problem that it refuses with backward.
RunOptions subject_for(const Problem &problem);

// With a message that holds `words`.
void expect_refused(annulus_status status, annulus_status wanted, const std::string &words);
// What the engine `cpu` computes in float64 and in the problem's dtype, for problems that take the reference too long.
struct CpuResults {
    Results exact, low;
};
CpuResults run_on_cpu(const Problem &problem, const Inputs &inputs, bool backward = true);
void expect_agreement_with_cpu(const Problem &problem, const Inputs &inputs, const Results &results);

} // namespace annulus::test
