// SPDX-License-Identifier: Apache-2.0
// The tiles of a launch of the fused kernels in closed form: branches, windows and the grid, in 32 bits.
//
// A launch computes something for each row of one side, in row blocks of 64 rows: of queries (O, dQ), or of keys (dK,
// dV). The rows of the other side that a row block meets form ranges. A kernel reads a range in blocks: KV blocks in
// forward and dQ, Q blocks in dK and dV.
//
// A cell is an interval of positions in which every branch has one segment. The rows of a cell are divided into classes
// modulo the dilations. The rows of a class take part in the same branches. So 64 rows of a class are one arithmetic
// progression: a row block. For each branch its range is also one arithmetic progression. A tile is a few row blocks of
// one cell and head.
#pragma once

#include "cuda/device/fast_divmod.hpp"
#include "cuda/fused/schedule/destination.hpp"

#include <annulus/config.h>

#include <cstdint>

namespace annulus {

constexpr int max_branches = 8; // branches of a launch
constexpr int max_strides = 8;  // different strides of range rows
constexpr int max_levels = 31;  // between a dilation of 1 and a dilation of 2^30
constexpr int max_classes = 32; // classes of row blocks in a cell and head
constexpr int max_ranges = 16;  // ranges of a tile
constexpr int row_block_rows = 64;
constexpr int multiplicity_period = 8; // in rows of a range

// Returns into how many ranges the rows of a branch are split if it is visited for branches of up to `period` times its
// dilation.
constexpr int splits_of_period(int period) {
    const int power_of_two = period & -period;
    return period / (power_of_two < multiplicity_period ? power_of_two : multiplicity_period);
}

// Positions, dilations and rows are below this. So the sum of two fits into 32 bits.
constexpr std::int64_t position_limit = std::int64_t{1} << 30;

struct GridBranch {
    FastDivmod length, dilation;
    FastDivmod range_dilation; // 1 if the row blocks of a class meet all rows of a segment, otherwise the dilation
    int first_head, head_count;
    FastDivmod heads_of_phase;
    int first_phase;
    // A row meets range rows from `before` positions before it to `after` positions after it, because of causality or a
    // window. A side without a limit has the sequence length or more.
    int before, after;
    // A row may meet only a part of the range rows, and other branches visit none of them. It is a window, or global
    // positions in a grid of all rows.
    bool is_window;
    // With is_window: the range rows are at the positions from range_start to range_end - 1, global positions or all.
    int range_start, range_end;
    // Which rows form row blocks: every row, the rows of the head's class, or the rows of each class, to meet the same
    // class.
    annulus_query_rule row_rule;

    bool operator==(const GridBranch &) const = default;
    constexpr bool serves(int head) const { return head >= first_head && head < first_head + head_count; }
    // Returns the residue that a head uses. The branch must serve the head.
    constexpr int phase(int head) const {
        return first_phase + dilation.remainder(heads_of_phase.quotient(head - first_head));
    }
    // True if the row at this position, in the segment that begins at `start`, is in a row block.
    constexpr bool has_row(int head, int position, int start) const {
        return row_rule != ANNULUS_QUERY_DILATED ||
               dilation.remainder(position) == dilation.remainder(start + phase(head));
    }
};

// Rows by what they may meet. Such a row takes part in one of these branches, and what it can meet there is not inside
// the window: its segment, or its sliding window.
struct PartialRows {
    GridBranch branches[max_branches]; // before and after of a sliding window may be larger than its own
    int branch_count;
    int window_start, window_end; // in positions

    bool operator==(const PartialRows &) const = default;
    constexpr bool has(int head, int position) const {
        for (int i = 0; i < branch_count; ++i) {
            const GridBranch &branch = branches[i];
            const int start = position - branch.length.remainder(position), end = start + branch.length.value;
            int first = start, last = end - 1;
            if (branch.is_window) {
                first = branch.before < position - start ? position - branch.before : start;
                last = branch.after < last - position ? position + branch.after : last;
            }
            if ((first < window_start || last >= window_end) && branch.serves(head) &&
                branch.has_row(head, position, start))
                return true;
        }
        return false;
    }
};

// Rows of a tensor. Row 0 is that of position `start`. Strides are in elements.
struct TensorRows {
    void *data;
    std::int64_t batch, row, head;
    int start;

    constexpr std::int64_t offset(int b, int h, int position) const {
        return b * batch + h * head + static_cast<std::int64_t>(position - start) * row;
    }
    // Returns the first row of a head.
    template <class Element> constexpr Element *first_row(int b, int h) const {
        return static_cast<Element *>(data) + b * batch + h * head;
    }
};

// The part of a grid that depends on a sequence's length and windows. Positions count from the start of the sequence.
struct SequenceGrid {
    FastDivmod lengths[max_branches]; // of the branches' segments
    // Segments here are the shortest of all branches. The segment ends of other branches may cut them into cells.
    FastDivmod tiles_of_cell, cells_of_segment, segments_of_section, sections;
    FastDivmod tiles_of_class; // only with residue_classes
    int segment_length, first_segment, segments;
    int sequence_length, row_start, row_count, range_start, range_count;

    bool operator==(const SequenceGrid &) const = default;
    // Returns the number of tile numbers of a head. Some numbers may have no tile.
    constexpr std::int64_t tiles() const {
        return std::int64_t{tiles_of_cell.value} * cells_of_segment.value * segments_of_section.value * sections.value;
    }
};

// One of several sequences in the rows of a call, or a sequence with a part of its ranges (range_parts.hpp).
struct PlacedSequence {
    unsigned first_tile; // among the tiles of a head
    int sequence_grid;   // index of its SequenceGrid
    int batch, start;    // batch entry, and the row of its position 0
    int partial_batch;   // batch entry of its partial results, which range parts have of their own

    bool operator==(const PlacedSequence &) const = default;
};

// The row orders that a kernel supports. A kernel for one order need not test at run time.
enum class RowOrder {
    linear,      // numbers are positions
    along_curve, // numbers follow a curve
    either,
};

struct TileGrid {
    // For each stride of range rows there are two tensor maps. The first is for residues below (rows modulo stride),
    // the second for all other residues, which have one row less.
    FastDivmod strides[max_strides];
    int longer_residues[max_strides]; // rows modulo stride
    int stride_count;

    // Sorted by dilation, then by length. Each dilation divides the next. Dilations that divide row blocks into classes
    // are levels.
    GridBranch branches[max_branches];
    int branch_count;
    FastDivmod levels[max_levels]; // 1, …, the largest dilation; each divides the next
    // With row rule `residue`: the largest dilation. Each residue modulo it is a class of row blocks.
    FastDivmod residue_classes;
    bool has_residue_classes;
    // A branch joins a chain of merged branches if its dilation is at most merged_ratio times the dilation of the
    // chain's first branch (find_ranges.cuh). An earlier branch of the chain then visits the common range rows, with
    // their multiplicity. 0: each branch visits all its ranges.
    int merged_ratio;
    bool keys_count_once; // key rule `once` with several branches: branches are then not merged
    bool causal, zero_keys;
    bool has_windows; // some branch is a window

    // Tile numbers count, from the fastest index: tiles of a cell (the longest first), cells of a segment, segments of
    // a section, heads, sections, batch. With by_length, tiles of a cell are the slowest index. Under causality the
    // segments of a section begin with the one whose rows meet the most.
    unsigned tiles;
    FastDivmod heads;
    int first_head, head_step; // of the heads of Q that the grid covers
    SequenceGrid sequence;
    // With several sequences, tile numbers count, from the fastest index: tiles of a cell, cells, segments, sections,
    // sequences, heads. Null for one sequence.
    const PlacedSequence *sequences;
    const SequenceGrid *sequence_grids;
    int sequence_count;
    FastDivmod tiles_of_head;
    // The longest tile of each cell comes first, then the next ones. Use it if there are few tiles for each CTA, so
    // that all CTAs end at about the same time (go_by_length()).
    bool by_length;
    bool skips_empty;              // row blocks that meet no row are left out
    PartialRows rows_with_partial; // earlier launches left partial results for these rows (branch_split.hpp); this
                                   // launch adds them
    PartialRows
        rows_left_partial; // rows that meet range rows outside this grid (rows_with_more_ranges()); they stay partial

    int first_row, first_range_row; // position of the first row of the tensors of row blocks, and of ranges
    FastDivmod range_stride;        // positions per row
    // For a grid over one branch along a curve: the positions of a segment, counted from its start, by their numbers
    // (curve_order.hpp). First comes a whole segment, then the last segment, if it is shorter. Null for a linear order.
    const int *order;
    int first_batch, batches;
    unsigned *next_tile; // starts at 0; counts the tiles taken beyond the first tile of each CTA

    bool operator==(const TileGrid &) const = default;

    // True if a row may meet only some rows of a range.
    constexpr bool is_bounded() const { return causal || has_windows; }

    // True if the rows of a segment that are in row blocks are one class.
    constexpr bool has_one_class() const { return branch_count == 1 && !has_residue_classes; }

    // True if some tiles meet more rows than other tiles.
    constexpr bool tiles_differ() const { return causal || branch_count > 1; }

    // Returns the position of a number. Tiles, row blocks and ranges count numbers. In a linear order numbers are
    // positions.
    template <RowOrder rows = RowOrder::either> constexpr int position_of(int number) const {
        if (rows == RowOrder::linear || (rows == RowOrder::either && !order))
            return number;
        const SegmentOrder segment = order_of_segment(number);
        return segment.start + segment.order[number - segment.start];
    }
    // The start of the segment that has a number, and the order of its positions, counted from the start.
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

// Returns the segment length of a branch in a sequence. It is the grid's, unless there are several sequences.
template <bool may_be_several>
constexpr const FastDivmod &length_of(const TileGrid &grid, const SequenceGrid &sequence, int branch) {
    return may_be_several ? sequence.lengths[branch] : grid.branches[branch].length;
}

} // namespace annulus
