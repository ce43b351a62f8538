// SPDX-License-Identifier: Apache-2.0
// The tiles of a launch of the fused kernels in closed form: branches, windows and the grid, in 32 bits.
//
// A launch computes something of each row of one side, in row blocks of 64: of queries (O, dQ), or of keys (dK, dV).
// The rows of the other side that a row block meets come in ranges, and these in blocks of as many rows as a kernel
// takes at once.
//
// The rows of a cell, an interval of positions in which every branch has one segment, fall into classes modulo the
// dilations; the rows of a class take part in the same branches. So 64 rows of a class are one progression of rows, a
// row block, whose ranges are, for each branch, one progression of rows. A tile is some row blocks of a cell and head.
#pragma once

#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/fast_divmod.hpp"

#include <annulus/config.h>

#include <cstdint>

namespace annulus {

constexpr int most_branches = 8; // of a launch
constexpr int most_strides = 8;  // of a range's rows
constexpr int most_levels = 31;  // between a dilation of 1 and one of 2^30
constexpr int most_classes = 32; // of the row blocks of a cell and head
constexpr int most_ranges = 16;  // of a tile
constexpr int row_block_rows = 64;
constexpr int multiplicity_period = 8; // of rows of a range

// Into how many ranges rows are split that are visited for branches of up to `period` times their dilation.
constexpr int splits_of_period(int period) {
    const int power_of_two = period & -period;
    return period / (power_of_two < multiplicity_period ? power_of_two : multiplicity_period);
}

// Positions, dilations and rows are below 2^30, so that sums of two fit into 32 bits.
constexpr std::int64_t position_limit = std::int64_t{1} << 30;

struct GridBranch {
    FastDivmod length, dilation;
    FastDivmod range_dilation; // 1 where row blocks of a class meet all rows of a segment, else the dilation
    int first_head, head_count;
    FastDivmod heads_of_phase;
    int first_phase;
    // Which rows row blocks are made of: every one, those of the head's class, or of each class to meet that class.
    annulus_query_rule row_rule;

    bool operator==(const GridBranch &) const = default;
    constexpr bool serves(int head) const { return head >= first_head && head < first_head + head_count; }
    // Of a head that it serves.
    constexpr int phase(int head) const {
        return first_phase + dilation.remainder(heads_of_phase.quotient(head - first_head));
    }
    // Whether the row at this position, in the segment from `start` on, is one of a row block.
    constexpr bool has_row(int head, int position, int start) const {
        return row_rule != ANNULUS_QUERY_DILATED ||
               dilation.remainder(position) == dilation.remainder(start + phase(head));
    }
};

// The rows that have partial results: that take part in one of these branches, in a segment
// which is not within a window.
struct PartialRows {
    GridBranch branches[most_branches];
    int branch_count;
    int window_start, window_end; // positions

    bool operator==(const PartialRows &) const = default;
    constexpr bool has(int head, int position) const {
        for (int i = 0; i < branch_count; ++i) {
            const GridBranch &branch = branches[i];
            const int start = position - branch.length.remainder(position), end = start + branch.length.value;
            if ((start < window_start || end > window_end) && branch.serves(head) &&
                branch.has_row(head, position, start))
                return true;
        }
        return false;
    }
};

// Row 0 is that of position `start`; strides in elements.
struct TensorRows {
    void *data;
    std::int64_t batch, row, head;
    int start;

    constexpr std::int64_t offset(int b, int h, int position) const {
        return b * batch + h * head + static_cast<std::int64_t>(position - start) * row;
    }
    // The first of a head's rows.
    template <class Element> constexpr Element *first_row(int b, int h) const {
        return static_cast<Element *>(data) + b * batch + h * head;
    }
};

// What of a grid depends on the length of a sequence and on its windows, in positions of the sequence.
struct SequenceGrid {
    FastDivmod lengths[most_branches]; // of the branches' segments
    // Segments are those of a branch with the shortest ones; those of others may cut them into cells.
    FastDivmod tiles_of_cell, cells_of_segment, segments_of_section, sections;
    FastDivmod tiles_of_class; // with residue_classes
    int segment_length, first_segment, segments;
    int sequence_length, row_start, row_count, range_start, range_count;

    bool operator==(const SequenceGrid &) const = default;
    // Numbers of tiles of a head; some may have none.
    constexpr std::int64_t tiles() const {
        return std::int64_t{tiles_of_cell.value} * cells_of_segment.value * segments_of_section.value * sections.value;
    }
};

// A sequence of several in the rows of a call.
struct PlacedSequence {
    unsigned first_tile; // of a head's
    int shape;           // which SequenceGrid is its own
    int batch, start;    // row of its position 0

    bool operator==(const PlacedSequence &) const = default;
};

// Which grids a kernel serves: what it knows it need not ask.
enum class RowOrder {
    linear,      // those whose numbers are positions
    along_curve, // those along a curve
    either,
};

struct TileGrid {
    // For each stride of a range's rows two tensor maps: of the residues below rows modulo stride, and of the others,
    // which have a row less.
    FastDivmod strides[most_strides];
    int longer_residues[most_strides]; // rows modulo stride
    int stride_count;

    // By dilation, then by length. Each dilation divides the next; those that divide row blocks into classes are
    // levels.
    GridBranch branches[most_branches];
    int branch_count;
    FastDivmod levels[most_levels]; // 1, …, the largest dilation; each divides the next
    // Row rule `residue`: the largest dilation, every class of which is one of row blocks.
    FastDivmod residue_classes;
    bool has_residue_classes;
    // Branches of up to so many times the dilation of the first of a chain are merged (find_ranges.cuh): of two, the
    // one that has the other's ranges in its segment visits them, with their multiplicity. 0: each branch visits all
    // its ranges.
    int merged_ratio;
    bool keys_count_once; // key rule `once` of several branches: then none are merged
    bool causal, zero_keys;

    // Tile ids count, from the fastest: tiles of a cell, the longest first (by_length: these last), cells of a segment,
    // segments of a section (under causality from the one whose rows meet the most), heads, sections, batch.
    unsigned tiles;
    FastDivmod heads;
    int first_head, head_step; // of the heads of Q that the numbers stand for
    SequenceGrid sequence;
    // Several sequences: then they count tiles of a cell, cells, segments, sections, sequences, heads. Else null.
    const PlacedSequence *sequences;
    const SequenceGrid *shapes;
    int sequence_count;
    FastDivmod tiles_of_head;
    // First the longest tile of each cell, then the next ones, so that few tiles come to the same for all CTAs
    // (go_by_length()).
    bool by_length;
    bool skips_empty;              // row blocks that meet nothing are left out
    PartialRows rows_with_partial; // which launches before have left (branch_split.hpp), to be added
    PartialRows rows_left_partial; // since they meet more than the ranges of all launches (rows_with_more_ranges())

    int first_row, first_range_row; // positions of the rows of row blocks and of ranges that tensors begin with
    FastDivmod range_stride;        // positions to a row
    // Of a grid over one branch along a curve: by their numbers (curve_order.hpp) the positions of a segment, from its
    // start; of a whole segment, then of the last one, if that is shorter. Else null.
    const int *order;
    int first_batch, batches;
    unsigned *next_tile; // 0 before; how many tiles were taken beyond those that CTAs have by their index

    bool operator==(const TileGrid &) const = default;

    // Whether some tiles meet more than others.
    constexpr bool tiles_differ() const { return causal || branch_count > 1; }

    // That a number stands for. Tiles, row blocks and ranges are of numbers: all positions where there is no curve.
    template <RowOrder rows = RowOrder::either> constexpr int position_of(int number) const {
        if (rows == RowOrder::linear || (rows == RowOrder::either && !order))
            return number;
        const SegmentOrder segment = order_of_segment(number);
        return segment.start + segment.order[number - segment.start];
    }
    // Of the segment that has a number: its start, and the order of its positions, counted from there.
    struct SegmentOrder {
        int start;
        const int *order;
    };
    constexpr SegmentOrder order_of_segment(int number) const {
        const FastDivmod &length = branches[0].length;
        const int start = number - length.remainder(number);
        return {start, order + (start + length.value <= sequence.sequence_length ? 0 : length.value)};
    }
};

// Of the segments of a branch in a sequence, which is that of the grid unless there are several.
template <bool several>
constexpr const FastDivmod &length_of(const TileGrid &grid, const SequenceGrid &sequence, int branch) {
    return several ? sequence.lengths[branch] : grid.branches[branch].length;
}

} // namespace annulus
