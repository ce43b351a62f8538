// SPDX-License-Identifier: Apache-2.0
// The engines and the plain formula against results of LongNet's published code: ../golden/longnet.txt. That file says
// how they were made and what the inputs are.
#include "support/compare.hpp"
#include "support/plain.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

struct Golden {
    Problem problem;
    std::vector<double> out;
};

Problem read_problem(std::istream &line) {
    Problem problem;
    problem.branches.clear();
    if (!(line >> problem.batch >> problem.length >> problem.heads >> problem.dim >> problem.causal))
        throw std::runtime_error("not a problem");
    for (BranchSpec branch; line >> branch.segment >> branch.dilation;)
        problem.branches.push_back(branch);
    problem.zero_keys = !problem.causal;
    return problem;
}

std::vector<Golden> read_golden() {
    const char *const folder = std::getenv("ANNULUS_GOLDEN");
    std::ifstream file(std::string(folder ? folder : "tests/golden") + "/longnet.txt");
    std::vector<Golden> all;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        if (line.starts_with("problem")) {
            words.ignore(7);
            all.push_back({read_problem(words), {}});
        } else if (!line.starts_with("#")) {
            for (double value; words >> value;)
                all.back().out.push_back(value);
        }
    }
    return all;
}

Inputs inputs_of(const Problem &problem, std::uint32_t number) {
    const auto next = [&number] {
        number = number * 1664525u + 1013904223u;
        return (number >> 16) / 32768.0 - 1;
    };
    Inputs inputs;
    for (std::size_t i = 0; i < problem.q_size(); ++i)
        inputs.q.push_back(4 * next());
    for (std::vector<double> *tensor : {&inputs.k, &inputs.v})
        for (std::size_t i = 0; i < problem.kv_size(); ++i)
            tensor->push_back(next());
    inputs.d_out.assign(problem.q_size(), 0);
    return inputs;
}

TEST(Golden, OutputsOfLongNetsPublishedCode) {
    const std::vector<Golden> all = read_golden();
    ASSERT_EQ(all.size(), 8) << "in the folder ANNULUS_GOLDEN";
    std::uint32_t number = 0;
    for (const Golden &golden : all) {
        Problem problem = golden.problem;
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = inputs_of(problem, ++number);
        expect_near("out of plain", plain(problem, inputs, ANNULUS_FLOAT64).out, golden.out, 1e-12);
        for (const auto dtype : {ANNULUS_FLOAT64, ANNULUS_FLOAT32})
            for (const auto engine : {ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU}) {
                SCOPED_TRACE(annulus_engine_name(engine));
                problem.dtype = dtype;
                expect_near("out", run(problem, inputs, {.engine = engine, .backward = false}).out, golden.out,
                            tolerance_of(dtype));
            }
    }
}

} // namespace
} // namespace annulus::test
