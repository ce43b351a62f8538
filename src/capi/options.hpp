// SPDX-License-Identifier: Apache-2.0
// The options of a call: a query window, gradients, sequences.
#pragma once

#include "core/pattern.hpp"
#include "core/plan.hpp"
#include "core/sequences.hpp"

#include <annulus/attention.h>
#include <annulus/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// Returns a copy of the caller's options, or the INIT macro's if they are NULL. Checks what needs no tensors.
annulus_call_options read_options(const annulus_call_options *options, annulus_pass pass);

// Returns the first position of the query window; nothing if the queries are all rows.
std::optional<std::int64_t> query_window(const annulus_call_options &options);

// Returns how the gradients are stored, by the options and the dtypes of d_q, d_k and d_v. An impossible dtype counts
// as the problem's; check_query_gradient() and check_key_gradient() refuse it.
GradientTargets gradient_targets(const annulus_call_options &options, annulus_dtype dtype, annulus_dtype d_q,
                                 annulus_dtype d_k, annulus_dtype d_v);

// Returns the sequences that the options name, in their order; empty if they name none. The tensors have `batch`
// entries of `rows` rows each; nothing if the number of rows is not known yet. Throws Error(ANNULUS_ERROR_ARGUMENT),
// also if the pattern does not fit a sequence.
std::vector<Sequence> check_sequences(const annulus_call_options &options, std::int64_t batch,
                                      std::optional<std::int64_t> rows, const Pattern &pattern);

// Throws because there are no query windows on several ranks.
[[noreturn]] void refuse_query_window();

} // namespace annulus
