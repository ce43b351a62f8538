// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/calls.hpp"

#include "support/compare.hpp"

namespace annulus::test {

CudaMemory &device_memory() {
    return static_cast<CudaMemory &>(*subject().memory);
}

RunOptions subject_for(const Problem &problem) {
    RunOptions options = subject();
    options.backward = !options.refusal_of(problem);
    return options;
}

Context context_for(const Problem &problem, annulus_engine engine) {
    RunOptions options = subject();
    options.engine = engine;
    return make_context(make_config(problem, options).get(), 0, device_memory());
}

annulus_engine last_engine(const Context &context) {
    annulus_engine engine = ANNULUS_ENGINE_REFERENCE;
    check(annulus_context_last_engine(context.get(), &engine));
    return engine;
}

void expect_refused(annulus_status status, annulus_status wanted, const std::string &words) {
    EXPECT_EQ(annulus_status_name(status), std::string(annulus_status_name(wanted)));
    const std::string message = annulus_last_error();
    EXPECT_NE(message.find(words), std::string::npos) << message << " does not say " << words;
}

std::string name_of_problem(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

annulus_status compute(const Call &call, annulus_pass pass, const Context &context) {
    return pass == ANNULUS_PASS_FORWARD ? call.forward(context.get()) : call.backward(context.get());
}

CpuResults run_on_cpu(const Problem &problem, const Inputs &inputs, bool backward) {
    const auto in_dtype = [&](annulus_dtype dtype) {
        Problem same = problem;
        same.dtype = dtype;
        return run(same, inputs, {.engine = ANNULUS_ENGINE_CPU, .threads = 0, .backward = backward});
    };
    return {in_dtype(ANNULUS_FLOAT64), in_dtype(problem.dtype)};
}

void expect_agreement_with_cpu(const Problem &problem, const Inputs &inputs, const Results &results) {
    const CpuResults wanted = run_on_cpu(problem, inputs, !results.d_q.empty());
    expect_agreement(problem, results, wanted.exact, wanted.low);
}

} // namespace annulus::test
