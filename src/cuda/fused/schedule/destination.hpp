// SPDX-License-Identifier: Apache-2.0
// Where the results of a launch go.
#pragma once

namespace annulus {

// Partial results are float32: forward the unnormalised O with (m, l) in units of log2, backward sums of gradients.
enum class Destination {
    outputs,              // rows of the caller's tensors
    set_partial,          // partial results of all rows
    add_to_partial,       // the same, added to what there is
    outputs_with_partial, // rows of the caller's tensors; those that have partial results add them first
    outputs_or_partial    // rows that other parts of the call add to: set_partial; all others: outputs, and finished
};

} // namespace annulus
