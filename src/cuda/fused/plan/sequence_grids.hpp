// SPDX-License-Identifier: Apache-2.0
// The numbers of a grid's tiles in one sequence, and in several.
#pragma once

#include "core/sequences.hpp"
#include "core/workspace.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/results/results.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace annulus {

inline constexpr std::int64_t too_many_tiles = std::int64_t{1} << 31;
// Returns the product, or too_many_tiles if it is larger.
unsigned count_tiles(std::int64_t tiles, std::initializer_list<int> factors);

// True if the branch divides row blocks into classes by their residues.
bool divides_rows(const GridBranch &branch);

void set_windows(const Window &rows, const Window &ranges, std::int64_t sequence_length, SequenceGrid &sequence);

// Sets the tile counts of a sequence whose lengths and windows are set. `classes` is PlannedGrid::classes.
void number_tiles(const TileGrid &grid, int classes, int row_blocks, SequenceGrid &sequence);

// plan_of_longest() is the plan of the longest sequence as if it were alone. lay_out_sequences() turns its grids into
// grids over all sequences. plan_of_rows() has the same pattern for all rows; its positions are rows.
Plan plan_of_longest(const SequencePlans &plans);
inline Plan plan_of_rows(const SequencePlans &plans) {
    return {plan_of_longest(plans), plans.rows()};
}
void lay_out_sequences(const SequencePlans &plans, GridResult what, const KernelShape &shape,
                       std::vector<PlannedGrid> &grids);

inline bool are_over_sequences(const std::vector<PlannedGrid> &grids) {
    return !grids.empty() && !grids.front().sequences.empty();
}

// Returns the sequences for the rows that are recomputed.
std::vector<RowSequence> row_sequences(const SequencePlans &plans);

// Device memory for what grids and repairs read of several sequences. Both are null for one sequence.
struct SequenceMemory {
    std::byte *grid_tables; // for each grid its sequence grids, then its sequences
    RowSequence *rows;
};
SequenceMemory book_sequences(Workspace &workspace, std::initializer_list<const std::vector<PlannedGrid> *> sides,
                              const std::vector<RowSequence> &rows);

inline void set_sequences(const std::vector<RowSequence> &rows, const SequenceMemory &memory, RowContext &context) {
    context.sequences = rows.empty() ? nullptr : memory.rows;
    context.sequence_count = static_cast<std::int32_t>(rows.size());
}

// Copies a grid's sequence grids and sequences to the next place of `memory`, with the next launch of `stores`, and
// sets their addresses in the kernel's parameters.
void store_sequences(const PlannedGrid &planned, Workspace &memory, TileGrid &params, ArrayStores &stores);

} // namespace annulus
