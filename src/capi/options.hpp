// SPDX-License-Identifier: Apache-2.0
// What a call is given beside its tensors.
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

// The caller's options, or those of the INIT macro where there are none, as far as they can be checked without tensors.
annulus_call_options read_options(const annulus_call_options *options, annulus_pass pass);

// Where the window of the query rows starts; none: they are all rows.
std::optional<std::int64_t> query_window(const annulus_call_options &options);

// What the options and the dtypes of d_q, d_k and d_v say of gradients. A dtype that cannot be is the problem's.
GradientTargets gradient_targets(const annulus_call_options &options, annulus_dtype dtype, annulus_dtype d_q,
                                 annulus_dtype d_k, annulus_dtype d_v);

// The sequences that the options name, in their order; none: they name none. `batch` entries of `rows` rows each, or of
// a number that is not known yet. Throws Error(ANNULUS_ERROR_ARGUMENT) also where the pattern does not fit one of them.
std::vector<Sequence> check_sequences(const annulus_call_options &options, std::int64_t batch,
                                      std::optional<std::int64_t> rows, const Pattern &pattern);

// With several ranks there are no query windows.
[[noreturn]] void refuse_query_window();

} // namespace annulus
