// SPDX-License-Identifier: Apache-2.0
// Checks the caller's tensors or sizes, and makes a problem of them.
#pragma once

#include "core/pattern.hpp"
#include "core/sequences.hpp"
#include "core/tensor.hpp"

#include <annulus/attention.h>
#include <annulus/tensor.h>

#include <cstdint>
#include <optional>

namespace annulus {

// Returns the problem of Q, K and V. Its B, Nq, H, D and dtype are q's, its N and G are k's, and v must fit.
//
// - query_start: the first position of the query window; nothing if the queries are all rows.
// - may_be_empty: the tensors may have no rows.
Problem check_inputs(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor &v,
                     std::optional<std::int64_t> query_start, bool may_be_empty);

// Returns the problem of results that are to be merged, by the first of them: B, Nq, H, D and dtype are those of `out`,
// and there are no keys. There may be no rows.
Problem check_results(const NamedTensor &out);

// Check the other tensors of a call.
void check_query_rows(const Problem &problem, const NamedTensor &argument);
void check_statistic(const Problem &problem, const NamedTensor &argument); // of queries
void check_mass(const Problem &problem, const NamedTensor &argument);      // of keys
void check_query_gradient(const Problem &problem, const NamedTensor &argument, const GradientTarget &target);
void check_key_gradient(const Problem &problem, const NamedTensor &argument, const GradientTarget &target);

// A problem that the caller describes by sizes, without tensors.
struct StatedProblem {
    CallProblem problem;
    std::int64_t row_alignment; // of the call's tensors, in bytes; 0: not known
};

// Returns the problem of calls of a pass under a config with this pattern. Its windows are of all ranks together.
// `has_ranks`: there may be several ranks.
StatedProblem check_problem(const annulus_problem *argument, const Pattern &pattern, annulus_pass pass, bool has_ranks);

} // namespace annulus
