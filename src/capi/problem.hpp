// SPDX-License-Identifier: Apache-2.0
// From the caller's tensors or sizes to a checked problem.
#pragma once

#include "core/pattern.hpp"
#include "core/sequences.hpp"
#include "core/tensor.hpp"

#include <annulus/attention.h>
#include <annulus/tensor.h>

#include <cstdint>
#include <optional>

namespace annulus {

// What Q, K and V say: q what B, Nq, H, D and the dtype are, k what N and G are; v must follow. `query_start`: the
// query rows are a window that starts there; none: they are all rows. `may_be_empty`: there may be no rows.
Problem check_inputs(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor &v,
                     std::optional<std::int64_t> query_start, bool may_be_empty);

// What results over some keys say, by the first part of several: B, Nq, H, D and the dtype, and no keys. There may be
// no rows.
Problem check_results(const NamedTensor &out);

// The other tensors of a call, by their role.
void check_query_rows(const Problem &problem, const NamedTensor &argument);
void check_statistic(const Problem &problem, const NamedTensor &argument); // of queries
void check_mass(const Problem &problem, const NamedTensor &argument);      // of keys
// Gradients of queries and of keys.
void check_query_gradient(const Problem &problem, const NamedTensor &argument, const GradientTarget &target);
void check_key_gradient(const Problem &problem, const NamedTensor &argument, const GradientTarget &target);

// What the caller says of a problem without tensors.
struct StatedProblem {
    CallProblem problem;
    std::int64_t row_alignment; // of the call's tensors, bytes; 0: not known
};

// For calls of a pass under a config with this pattern. The windows are those of all ranks together; `has_ranks`: there
// may be several.
StatedProblem check_problem(const annulus_problem *argument, const Pattern &pattern, annulus_pass pass, bool has_ranks);

} // namespace annulus
