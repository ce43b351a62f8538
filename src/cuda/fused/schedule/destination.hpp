// SPDX-License-Identifier: Apache-2.0
// The destination of a launch's results. Partial results are float32 sums over some of the keys or queries, to which
// other launches add. In forward they are O before normalisation and (m, l) in units of log2. In backward they are
// gradients.
#pragma once

namespace annulus {

enum class Destination {
    outputs,        // all rows of the caller's tensors
    set_partial,    // partial results of all rows that have them (DeviceSummedRows)
    add_to_partial, // the same, added to the stored ones
    // Rows of the caller's tensors. Rows of TileGrid::rows_with_partial have their partial results added first.
    outputs_with_partial,
    // The same, but rows of TileGrid::rows_left_partial become partial results. The launch finishes all other rows:
    // it writes them to the caller's tensors, and forward writes finished_state() for them. For rows that are left
    // partial, the values in the caller's tensors are incomplete.
    outputs_or_partial,
    // All rows of the caller's tensors. Partial results are added first to the rows that have them. Forward also writes
    // finished_state().
    finish_partial,
};

} // namespace annulus
