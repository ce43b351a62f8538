// SPDX-License-Identifier: Apache-2.0
// The problems on which engines are compared with the reference.
#pragma once

#include "support/problem.hpp"

#include <iosfwd>
#include <string>
#include <vector>

namespace annulus::test {

struct NamedProblem {
    std::string name;
    Problem problem;
};
std::ostream &operator<<(std::ostream &out, const NamedProblem &named);

// Every combination of phase rule, query rule, order, padding rule and causality, on a small ragged problem.
std::vector<NamedProblem> rule_combinations();

// One property each: sizes, heads, layouts, windows.
std::vector<NamedProblem> named_problems();

// Prov-GigaPath's slide encoder: the tiles of a slide and one class token.
Problem gigapath(std::int64_t tiles);

// A bit of everything, causal.
Problem mixed_problem(annulus_dtype dtype);

// Branches that reach keys of one another, over several tiles: nested as LongNet's, the longest first, twice the same.
std::vector<NamedProblem> nested_problems();

// The same problems with keys that count once.
std::vector<NamedProblem> with_keys_once(std::vector<NamedProblem> problems);

// Each problem in every one of `dtypes`; of the fast part, in one of them in turn.
std::vector<NamedProblem> with_dtypes(const std::vector<NamedProblem> &problems,
                                      const std::vector<annulus_dtype> &dtypes);

// Those of no more than `most_work`.
std::vector<NamedProblem> up_to(double most_work, std::vector<NamedProblem> problems);

// Problem::work() that the definition does in a moment.
constexpr double small_work = 2e7;

// Whether the environment (ANNULUS_TEST_QUICK) asks for the fast part only, as a run under sanitizers does.
bool quick();

// All of them; of the fast part, the last.
std::vector<annulus_dtype> dtypes_of_part(const std::vector<annulus_dtype> &all);

// Of a sweep of random problems, of which each has the next seed: the first seed, and how many there are. Those of
// ANNULUS_TEST_SEED and ANNULUS_TEST_PROBLEMS where they are set.
std::uint64_t sweep_seed(std::uint64_t usual);
int sweep_size(int usual);

} // namespace annulus::test
