// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/sequence_grids.hpp"

#include <algorithm>
#include <functional>
#include <span>

namespace annulus {

bool divides_rows(const GridBranch &branch) {
    return branch.row_rule != ANNULUS_QUERY_EVERY;
}

void number_tiles(const TileGrid &grid, int classes, int row_blocks, SequenceGrid &sequence) {
    const std::span<const GridBranch> branches(grid.branches, static_cast<std::size_t>(grid.branch_count));
    const std::span<const FastDivmod> lengths(sequence.lengths, branches.size());
    const int length = std::ranges::min(lengths, {}, &FastDivmod::value).value;
    const int longest = std::ranges::max(lengths, {}, &FastDivmod::value).value;
    sequence.segment_length = length;
    sequence.first_segment = sequence.row_start / length;
    sequence.segments = (sequence.row_start + sequence.row_count - 1) / length - sequence.first_segment + 1;
    // The ranges of a head and section are read at about the same time.
    const int segments_of_section = std::min(sequence.segments, static_cast<int>(divide_up(longest, length)));
    sequence.segments_of_section = FastDivmod(segments_of_section);
    sequence.sections = FastDivmod(static_cast<int>(divide_up(sequence.segments, segments_of_section)));
    // A branch whose segments do not end with the shortest segments may divide each of the shortest segments once.
    sequence.cells_of_segment =
        FastDivmod(1 + static_cast<int>(std::ranges::count_if(lengths, [&](const FastDivmod &other) {
                       return other.value % length != 0 && other.value < sequence.sequence_length;
                   })));
    const std::int64_t rows = std::min(length, sequence.row_count);
    std::int64_t tiles_of_cell;
    if (grid.has_residue_classes) {
        const std::int64_t row_blocks_of_class = divide_up(divide_up(rows, grid.residue_classes.value), row_block_rows);
        sequence.tiles_of_class = FastDivmod(static_cast<int>(divide_up(row_blocks_of_class, row_blocks)));
        tiles_of_cell = std::int64_t{sequence.tiles_of_class.value} * grid.residue_classes.value;
    } else {
        std::int64_t members = 0;
        for (const GridBranch &branch : branches)
            members += divides_rows(branch) ? divide_up(rows, branch.dilation.value) : rows;
        const std::int64_t row_blocks_of_cell =
            (std::min(rows, members) + std::int64_t{classes} * (row_block_rows - 1)) / row_block_rows;
        tiles_of_cell = divide_up(row_blocks_of_cell, row_blocks);
    }
    sequence.tiles_of_cell = FastDivmod(static_cast<int>(std::min(tiles_of_cell, too_many_tiles - 1)));
}

void set_windows(const Window &rows, const Window &ranges, std::int64_t sequence_length, SequenceGrid &sequence) {
    sequence.sequence_length = static_cast<int>(sequence_length);
    sequence.row_start = static_cast<int>(rows.start);
    sequence.row_count = static_cast<int>(rows.length);
    sequence.range_start = static_cast<int>(ranges.start);
    sequence.range_count = static_cast<int>(ranges.length);
}

unsigned count_tiles(std::int64_t tiles, std::initializer_list<int> factors) {
    for (const int factor : factors)
        tiles = std::min(too_many_tiles, tiles * factor);
    return static_cast<unsigned>(tiles);
}

namespace {

SequenceGrid sequence_of(const PlannedGrid &planned, const Problem &problem, GridResult what,
                         const KernelShape &shape) {
    const TileGrid &tiles = planned.tiles;
    const bool rows_are_keys = what == GridResult::key_gradients;
    SequenceGrid sequence{};
    for (int i = 0; i < tiles.branch_count; ++i)
        sequence.lengths[i] = FastDivmod(
            static_cast<int>(std::min<std::int64_t>(tiles.branches[i].length.value, problem.sequence_length)));
    set_windows(rows_are_keys ? problem.keys : problem.queries, rows_are_keys ? problem.queries : problem.keys,
                problem.sequence_length, sequence);
    number_tiles(tiles, planned.classes, shape.row_blocks, sequence);
    return sequence;
}

// The addresses of the sequence grids and sequences of a grid.
struct SequenceTables {
    SequenceGrid *sequence_grids;
    PlacedSequence *sequences;
    SequenceTables(const PlannedGrid &planned, Workspace &memory)
        : sequence_grids(memory.take<SequenceGrid>(planned.sequence_grids.size())),
          sequences(memory.take<PlacedSequence>(planned.sequences.size())) {}
};

} // namespace

Plan plan_of_longest(const SequencePlans &plans) {
    const Plan &longest =
        std::ranges::max(plans.plans(), {}, [](const Plan &plan) { return plan.problem().sequence_length; });
    Problem alone = longest.problem();
    alone.queries = alone.keys = {0, alone.sequence_length};
    return {longest, alone};
}

void lay_out_sequences(const SequencePlans &plans, GridResult what, const KernelShape &shape,
                       std::vector<PlannedGrid> &grids) {
    const bool rows_are_keys = what == GridResult::key_gradients;
    const Problem &rows = plans.rows();
    const Window &own = rows_are_keys ? rows.keys : rows.queries, &other = rows_are_keys ? rows.queries : rows.keys;
    std::vector<double> pairs;
    for (const Plan &plan : plans.plans())
        pairs.push_back(plan.pairs(ANNULUS_ALL_BRANCHES));
    std::vector<SequencePlans::Item> items = plans.items();
    std::ranges::stable_sort(items, std::greater(), [&](const SequencePlans::Item &item) {
        return pairs[item.plan] / static_cast<double>(item.sequence.batches);
    });
    for (PlannedGrid &planned : grids) {
        TileGrid &tiles = planned.tiles;
        for (const Plan &plan : plans.plans())
            planned.sequence_grids.push_back(sequence_of(planned, plan.problem(), what, shape));
        std::int64_t tiles_of_head = 0;
        for (const SequencePlans::Item &item : items)
            for (std::int64_t i = 0; i < item.sequence.batches; ++i) {
                planned.sequences.push_back({static_cast<unsigned>(tiles_of_head), static_cast<int>(item.plan),
                                             static_cast<int>(item.sequence.first_batch + i),
                                             static_cast<int>(item.sequence.rows.start),
                                             static_cast<int>(item.sequence.first_batch + i)});
                tiles_of_head = std::min(too_many_tiles, tiles_of_head + planned.sequence_grids[item.plan].tiles());
            }
        tiles.sequence_count = static_cast<int>(planned.sequences.size());
        tiles.tiles_of_head = FastDivmod(static_cast<int>(std::min(tiles_of_head, too_many_tiles - 1)));
        tiles.tiles = count_tiles(tiles_of_head, {tiles.heads.value});
        tiles.first_row = static_cast<int>(own.start);
        tiles.first_range_row = static_cast<int>(other.start);
        for (int i = 0; i < tiles.stride_count; ++i)
            tiles.longer_residues[i] = tiles.strides[i].remainder(static_cast<int>(other.length));
        planned.leaves_rows = planned.is_complete && !plans.covers_rows() && !plans.clears_other_rows();
        planned.is_complete = planned.is_complete && plans.covers_rows();
    }
}

std::vector<RowSequence> row_sequences(const SequencePlans &plans) {
    std::vector<RowSequence> rows;
    for (const SequencePlans::Item &item : plans.items())
        for (std::int64_t i = 0; i < item.sequence.batches; ++i)
            rows.push_back({static_cast<int>(item.sequence.first_batch + i), static_cast<int>(item.sequence.rows.start),
                            static_cast<int>(item.sequence.rows.length)});
    return rows;
}

SequenceMemory book_sequences(Workspace &workspace, std::initializer_list<const std::vector<PlannedGrid> *> sides,
                              const std::vector<RowSequence> &rows) {
    Workspace ledger;
    for (const std::vector<PlannedGrid> *grids : sides)
        for (const PlannedGrid &planned : *grids)
            if (!planned.sequences.empty())
                SequenceTables(planned, ledger);
    return {workspace.take<std::byte>(ledger.used()), workspace.take<RowSequence>(rows.size())};
}

void store_sequences(const PlannedGrid &planned, Workspace &memory, TileGrid &params, ArrayStores &stores) {
    if (planned.sequences.empty())
        return;
    const SequenceTables tables(planned, memory);
    stores.add(planned.sequence_grids.data(), planned.sequence_grids.size(), tables.sequence_grids);
    stores.add(planned.sequences.data(), planned.sequences.size(), tables.sequences);
    params.sequence_grids = tables.sequence_grids;
    params.sequences = tables.sequences;
}

} // namespace annulus
