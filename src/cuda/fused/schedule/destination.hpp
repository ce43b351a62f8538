// SPDX-License-Identifier: Apache-2.0
// Where a launch puts its results. Partial results are float32 sums over some keys or queries, which other launches add
// to: of forward O, unnormalised, and (m, l) in units of log2; of backward gradients.
#pragma once

namespace annulus {

enum class Destination {
    outputs,        // rows of the caller's tensors
    set_partial,    // partial results, of all rows
    add_to_partial, // partial results, of all rows, to be added to those that are there
    // Rows of the caller's tensors; those of TileGrid::rows_with_partial have their partial results added first.
    outputs_with_partial,
    // Partial results of the rows of TileGrid::rows_left_partial, all or none of a row block. The others, which meet
    // nothing else, are written to the caller's tensors at once; forward writes finished_state() for them.
    outputs_or_partial,
    // Both of these, where some rows of a row block may be left: what is written to the caller's tensors for those is
    // not all of it.
    outputs_or_partial_with_partial,
    // Rows of the caller's tensors, all of which have their partial results added first; forward also writes
    // finished_state().
    finish_partial,
};

} // namespace annulus
