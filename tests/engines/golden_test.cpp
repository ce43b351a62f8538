// SPDX-License-Identifier: Apache-2.0
// The engines and the plain formula against results of published code: LongNet's, Longformer's and NATTEN's, in
// ../golden. Each file says how its results were made and what the inputs are.
#include "support/compare.hpp"
#include "support/plain.hpp"
#include "support/window.hpp"

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

// Reads the rest of a problem's line.
using ReadProblem = void (*)(std::istream &line, Problem &problem);

void read_longnet(std::istream &line, Problem &problem) {
    line >> problem.causal;
    for (BranchSpec branch; line >> branch.segment >> branch.dilation;)
        problem.branches.push_back(branch);
    problem.zero_keys = !problem.causal;
}

void read_longformer(std::istream &line, Problem &problem) {
    std::int64_t window = 0, dilation = 0, first = 0, count = 0;
    line >> window >> dilation >> first >> count;
    problem.branches = {window_spec(window, window, dilation)};
    if (count > 0)
        problem.branches.push_back(global_spec(first, count, true));
    problem.keys_once = true;
}

void read_natten(std::istream &line, Problem &problem) {
    std::int64_t kernel = 0, dilation = 0;
    line >> kernel >> dilation >> problem.causal;
    problem.branches = {problem.causal ? window_spec(kernel - 1, 0, dilation)
                                       : window_spec(kernel / 2, kernel / 2 + kernel % 2 - 1, dilation)};
}

Problem read_problem(std::istream &line, ReadProblem read_rest) {
    Problem problem;
    problem.branches.clear();
    if (!(line >> problem.batch >> problem.length >> problem.heads >> problem.dim))
        throw std::runtime_error("not a problem");
    read_rest(line, problem);
    return problem;
}

std::vector<Golden> read_golden(const std::string &name, ReadProblem read_rest) {
    const char *const folder = std::getenv("ANNULUS_GOLDEN");
    std::ifstream file(std::string(folder ? folder : "tests/golden") + "/" + name + ".txt");
    std::vector<Golden> all;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        if (line.starts_with("problem")) {
            words.ignore(7);
            all.push_back({read_problem(words, read_rest), {}});
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

std::vector<double> all_rows(const Problem &, const std::vector<double> &out) {
    return out;
}

// Returns the rows whose windows the ends of the sequence do not cut.
std::vector<double> rows_of_whole_windows(const Problem &problem, const std::vector<double> &out) {
    const BranchSpec &window = problem.branches[0];
    if (problem.causal)
        return out;
    const std::int64_t first = window.left * window.dilation, end = problem.length - window.right * window.dilation;
    return slice(out, problem.batch, problem.length, first, end - first);
}

void expect_golden(const std::vector<Golden> &all, std::size_t count,
                   std::vector<double> (*rows)(const Problem &, const std::vector<double> &)) {
    ASSERT_EQ(all.size(), count) << "in the folder ANNULUS_GOLDEN";
    std::uint32_t number = 0;
    for (const Golden &golden : all) {
        Problem problem = golden.problem;
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = inputs_of(problem, ++number);
        const std::vector<double> wanted = rows(problem, golden.out);
        ASSERT_FALSE(wanted.empty());
        expect_near("out of plain", rows(problem, plain(problem, inputs, ANNULUS_FLOAT64).out), wanted, 1e-12);
        for (const auto dtype : {ANNULUS_FLOAT64, ANNULUS_FLOAT32})
            for (const auto engine : {ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU}) {
                SCOPED_TRACE(annulus_engine_name(engine));
                problem.dtype = dtype;
                const Results results = run(problem, inputs, {.engine = engine, .backward = false});
                expect_near("out", rows(problem, results.out), wanted, tolerance_of(dtype));
            }
    }
}

TEST(Golden, OutputsOfLongNetsPublishedCode) {
    expect_golden(read_golden("longnet", read_longnet), 8, all_rows);
}

TEST(Golden, OutputsOfLongformersPublishedCode) {
    expect_golden(read_golden("longformer", read_longformer), 12, all_rows);
}

TEST(Golden, OutputsOfNattensPublishedMask) {
    expect_golden(read_golden("natten", read_natten), 12, rows_of_whole_windows);
}

} // namespace
} // namespace annulus::test
