// SPDX-License-Identifier: Apache-2.0
// Calls of the engine `fused`, and who answered them.
#pragma once

#include "cuda/cuda_memory.hpp"
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include <gtest/gtest.h>

#include <string>

namespace annulus::test {

std::string name_of_problem(const testing::TestParamInfo<NamedProblem> &info);

struct TensorOfCall {
    const char *name;
    annulus_tensor Call::Arguments::*tensor;
};

constexpr annulus_pass passes[] = {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD};

// Returns the memory of the subject's tensors.
CudaMemory &device_memory();
Context context_for(const Problem &problem, annulus_engine engine);
annulus_status compute(const Call &call, annulus_pass pass, const Context &context);
annulus_engine last_engine(const Context &context);

// Returns subject(), without backward if the engine refuses backward of the problem.
RunOptions subject_for(const Problem &problem);

// Expects a status, and a message that contains `words`.
void expect_refused(annulus_status status, annulus_status wanted, const std::string &words);
// Results of the engine `cpu` in float64 and in the problem's dtype, for problems that are too slow for the reference.
struct CpuResults {
    Results exact, low;
};
CpuResults run_on_cpu(const Problem &problem, const Inputs &inputs, bool backward = true);
void expect_agreement_with_cpu(const Problem &problem, const Inputs &inputs, const Results &results);

} // namespace annulus::test
