// SPDX-License-Identifier: Apache-2.0
// From the caller's tensors or sizes to a checked problem.
#pragma once

#include "core/plan.hpp"
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

// The other tensors of a call, by their role.
void check_query_rows(const Problem &problem, const NamedTensor &argument);
void check_key_rows(const Problem &problem, const NamedTensor &argument);
void check_statistic(const Problem &problem, const NamedTensor &argument);

Problem check_problem(const annulus_problem *argument);

} // namespace annulus
