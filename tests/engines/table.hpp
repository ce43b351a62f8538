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

// Adds a problem without a causal mask, and then with one, as name_causal.
void add_with_causality(const std::string &name, Problem problem, std::vector<NamedProblem> &problems);

// Every combination of phase rule, query rule, order, padding rule and causality, on a small ragged problem.
std::vector<NamedProblem> rule_combinations();

// Problems that each have one special property: size, heads, layout or window.
std::vector<NamedProblem> named_problems();

// Prov-GigaPath's slide encoder: the tiles of a slide and one class token.
Problem gigapath(std::int64_t tiles);

// A causal problem that combines many properties.
Problem mixed_problem(annulus_dtype dtype);

// Branches that share keys, over several tiles: nested as in LongNet, the longest first, and the same branch twice.
std::vector<NamedProblem> nested_problems();

// Returns the same problems with keys that count once.
std::vector<NamedProblem> with_keys_once(std::vector<NamedProblem> problems);

// Returns the problems. Those of several branches follow once more, named once_…, with keys that count once.
std::vector<NamedProblem> with_both_key_rules(const std::vector<NamedProblem> &problems);

// Returns each problem in every one of `dtypes`. In the fast part, each problem has one dtype in turn.
std::vector<NamedProblem> with_dtypes(const std::vector<NamedProblem> &problems,
                                      const std::vector<annulus_dtype> &dtypes);

// Returns the problems whose Problem::work() is at most `most_work`.
std::vector<NamedProblem> up_to(double most_work, std::vector<NamedProblem> problems);

// Problem::work() that the definition computes in a moment.
constexpr double small_work = 2e7;

// True if the environment (ANNULUS_TEST_QUICK) asks for the fast part only, as a run under sanitizers does.
bool quick();

// Returns all dtypes, or in the fast part the last one.
std::vector<annulus_dtype> dtypes_of_part(const std::vector<annulus_dtype> &all);

// The first seed and the number of problems of a random sweep; each problem has the next seed. ANNULUS_TEST_SEED and
// ANNULUS_TEST_PROBLEMS replace the usual values.
std::uint64_t sweep_seed(std::uint64_t usual);
int sweep_size(int usual);

} // namespace annulus::test
