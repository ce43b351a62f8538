// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_cases.hpp"

#include <utility>

namespace annulus::cli {

ProblemOptions problem_of(std::int64_t tokens, std::int32_t heads, std::int32_t head_dim, const std::string &dtype) {
    ProblemOptions problem;
    problem.tokens = tokens;
    problem.heads = heads;
    problem.head_dim = head_dim;
    problem.dtype = dtype;
    return problem;
}

PatternOptions branches_of(std::vector<std::string> branches, bool causal) {
    PatternOptions pattern;
    pattern.branches = std::move(branches);
    pattern.causal = causal;
    return pattern;
}

PatternOptions preset_of(std::string preset, bool causal) {
    PatternOptions pattern;
    pattern.presets.push_back(std::move(preset));
    pattern.causal = causal;
    return pattern;
}

std::string sizes_text(const ProblemOptions &p) {
    std::string text = ", H=" + std::to_string(p.heads) + " D=" + std::to_string(p.head_dim);
    if (p.kv_heads && p.kv_heads != p.heads)
        text += " G=" + std::to_string(p.kv_heads);
    if (p.batch != 1)
        text += " B=" + std::to_string(p.batch);
    return text + (p.dtype == "float32" ? "" : " " + p.dtype);
}

namespace {

BenchCase make_case(const std::string &name, const ProblemOptions &problem, const PatternOptions &pattern) {
    return {name + (pattern.causal ? " causal" : "") + sizes_text(problem), problem, pattern};
}

// Returns cases with one branch, dense and dilated, that have equal numbers of (query, key) pairs.
std::vector<BenchCase> one_branch_cases(std::int64_t dense_tokens, std::int64_t dilated_tokens, std::int32_t heads,
                                        const std::string &dtype) {
    std::vector<BenchCase> cases;
    for (const std::int32_t head_dim : {64, 128})
        for (const bool causal : {false, true})
            for (const auto &[branch, tokens] :
                 {std::pair("2048:1", dense_tokens), std::pair("8192:4", dilated_tokens)})
                cases.push_back(
                    make_case(branch, problem_of(tokens, heads, head_dim, dtype), branches_of({branch}, causal)));
    return cases;
}

BenchCase gigapath_case(std::int64_t tokens, const std::string &dtype) {
    return make_case("Prov-GigaPath", problem_of(tokens, 16, 48, dtype), preset_of("gigapath"));
}

} // namespace

std::vector<BenchCase> cpu_cases(const std::string &dtype) {
    std::vector<BenchCase> cases = one_branch_cases(8192, 32768, 4, dtype);
    cases.push_back(gigapath_case(10001, dtype));
    return cases;
}

std::vector<BenchCase> cuda_cases(const std::string &dtype) {
    std::vector<BenchCase> cases = one_branch_cases(65536, 262144, 16, dtype);
    for (const bool causal : {false, true})
        cases.push_back(make_case("LongNet 2048:1 to 65536:32", problem_of(262144, 16, 128, dtype),
                                  preset_of("longnet:2048,2,2,6", causal)));
    for (const std::int64_t tokens : {10001, 70001})
        cases.push_back(gigapath_case(tokens, dtype));
    return cases;
}

BenchCase custom_case(const ProblemOptions &problem, const PatternOptions &pattern) {
    std::string name;
    for (const std::string &branch : pattern.labels(problem.heads))
        name += (name.empty() ? "" : " ") + branch;
    return make_case(name, problem, pattern);
}

} // namespace annulus::cli
