// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/branch_split.hpp"

#include "cuda/fused/schedule/cell.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

namespace annulus {

namespace {

// Times are in rows of a block of a range in which all row blocks of a tile take part. By a fit to times on an H200
// (notes.md): what a grid takes beside its tiles, a tile beside its blocks of ranges, and a row block that waits for
// the others of its tile, as a part of what it would take with them.
constexpr double rows_of_launch = 4000, rows_of_tile = 512, cost_of_waiting = 0.75;
constexpr double least_rows = 3 * rows_of_launch; // of a grid that may be worth splitting
constexpr double least_gain = 0.05;

// Of the row blocks of a cell that are in the same class.
struct RowBlocksOfClass {
    std::int64_t met; // rows of ranges
    int row_blocks;
    unsigned branches; // a bit for each that they take part in
};

// The time that a grid takes, in rows as above, from a look at some of its cells. Of tiles only what counts is found as
// in find_ranges.cuh; causality is taken to halve all of it.
class GridTime {
  public:
    GridTime(const TileGrid &grid, const KernelShape &shape) : grid_(grid), shape_(shape) {
        const std::int64_t heads = grid.heads.value, segments = grid.sequence.segments;
        const int samples = static_cast<int>(std::min<std::int64_t>(most_samples, heads * segments));
        for (int i = 0; i < samples; ++i) // of each as evenly as can be (Roberts, 2018)
            visit_segment(sample(i, 0.7548776662466927, heads) * grid.head_step,
                          sample(i, 0.5698402909980532, segments));
        all_ *= static_cast<double>(heads * segments) / samples * grid.batches * (grid.causal ? 0.5 : 1);
    }

    double of_tiles() const { return all_; }
    double on(int multiprocessors) const { return all_ / multiprocessors + rows_of_launch; }

  private:
    using RowBlockCounts = std::array<int, most_branches>; // that take part in each branch
    static constexpr int most_samples = 12;

    static int sample(int i, double step, std::int64_t all) {
        const double x = 0.5 + i * step;
        return static_cast<int>((x - std::floor(x)) * static_cast<double>(all));
    }

    const TileGrid &grid_;
    const SequenceGrid &sequence_ = grid_.sequence;
    const KernelShape &shape_;
    double all_ = 0; // tiles
    // Of the cell at hand, and of its tile.
    std::vector<CellBranch> branches_, branches_of_tile_;
    std::vector<RowBlocksOfClass> classes_;

    void visit_segment(int head, int segment) {
        const int segment_start = (sequence_.first_segment + segment) * sequence_.segment_length;
        const int segment_end = std::min(segment_start + sequence_.segment_length, sequence_.sequence_length);
        for (int start = segment_start, end; start < segment_end; start = end) {
            end = segment_end;
            branches_.clear();
            for (int i = 0; i < grid_.branch_count; ++i) {
                branches_.emplace_back(grid_.branches[i], grid_.branches[i].length, sequence_.sequence_length, head,
                                       start);
                end = std::min(end, branches_.back().end);
            }
            visit_cell(std::max(start, sequence_.row_start), std::min(end, sequence_.row_start + sequence_.row_count));
        }
    }

    void visit_cell(int start, int end) {
        classes_.clear();
        const auto add = [&](int residue, const FastDivmod &modulus, unsigned members) {
            const int rows = Members(start, end, residue, modulus).count;
            std::int64_t met = 0;
            for (int i = 0; i < grid_.branch_count; ++i)
                if (members >> i & 1)
                    met += rows_of(branches_[i], i, branches_[i].start, branches_[i].end);
            if (members)
                classes_.push_back({met, static_cast<int>(divide_up(rows, row_block_rows)), members});
        };
        if (grid_.branch_count == 1)
            add(branches_[0].row_residue, row_divisor(0), branches_[0].serves);
        else
            for_each_class(0, 0, add);
        std::ranges::stable_sort(classes_, std::greater(), &RowBlocksOfClass::met);

        // Tiles within a class are alike; others have the end of one and what follows.
        int row_blocks = 0;
        unsigned taking = 0;
        RowBlockCounts of_branch{};
        const auto put = [&](const RowBlocksOfClass &of_class, int count) {
            if (count == 0)
                return;
            row_blocks += count;
            taking |= of_class.branches;
            for (std::size_t i = 0; i < branches_.size(); ++i)
                of_branch[i] += (of_class.branches >> i & 1) * count;
        };
        const auto finish = [&](int tiles) {
            if (row_blocks > 0)
                visit_tile(taking, of_branch, tiles);
            row_blocks = 0;
            taking = 0;
            of_branch = {};
        };
        for (const RowBlocksOfClass &of_class : classes_) {
            int left = of_class.row_blocks;
            const int before = std::min(left, (shape_.row_blocks - row_blocks) % shape_.row_blocks);
            put(of_class, before);
            left -= before;
            if (row_blocks == shape_.row_blocks)
                finish(1);
            if (const int tiles = left / shape_.row_blocks; tiles > 0) {
                put(of_class, shape_.row_blocks);
                finish(tiles);
            }
            put(of_class, left % shape_.row_blocks);
        }
        finish(1);
    }

    // use(residue, modulus, branches) for each class of row blocks.
    template <class Use> void for_each_class(int level, int residue, const Use &use) const {
        const FastDivmod &modulus = grid_.levels[level];
        unsigned members = 0;
        for (int i = 0; i < grid_.branch_count; ++i) {
            const CellBranch &branch = branches_[i];
            if (!branch.serves)
                continue;
            if (branch.row_dilation <= modulus.value) {
                members |= static_cast<unsigned>(row_divisor(i).remainder(residue) == branch.row_residue) << i;
            } else if (modulus.remainder(branch.row_residue) == residue) { // it has parts
                for (int part = residue; part < grid_.levels[level + 1].value; part += modulus.value)
                    for_each_class(level + 1, part, use);
                return;
            }
        }
        use(residue, modulus, members);
    }

    // So many row blocks take part in each branch.
    void visit_tile(unsigned taking, const RowBlockCounts &row_blocks, int tiles) {
        std::vector<CellBranch> &branches = branches_of_tile_;
        branches = branches_;
        for (std::size_t i = 0; i < branches.size(); ++i)
            for (std::size_t j = 0; j < i; ++j)
                if ((taking >> i & 1) && (taking >> j & 1))
                    branches[i].leave_to(grid_, static_cast<int>(j), branches[j]);
        double rows = rows_of_tile;
        for (std::size_t i = 0; i < branches.size(); ++i) {
            if (!(taking >> i & 1))
                continue;
            const CellBranch &branch = branches[i];
            int largest = branch.range_dilation;
            for (std::size_t j = i + 1; j < branches.size(); ++j)
                if (branches[j].ancestors >> i & 1)
                    largest = std::max(largest, branches[j].range_dilation);
            const int splits = splits_of_period(largest / branch.range_dilation);
            const auto visit = [&](int start, int end) {
                const std::int64_t met = rows_of(branch, static_cast<int>(i), start, end);
                const std::int64_t blocks = divide_up(met, std::int64_t{splits} * shape_.range_block_rows) *
                                            std::min<std::int64_t>(splits, met);
                const double busy = static_cast<double>(row_blocks[i]) / shape_.row_blocks;
                rows += static_cast<double>(blocks * shape_.range_block_rows) * (busy + cost_of_waiting * (1 - busy));
            };
            visit(branch.start, branch.others_start);
            if (branch.has_others())
                visit(branch.others_end, branch.end);
        }
        all_ += rows * tiles;
    }

    const FastDivmod &row_divisor(int branch) const {
        static constexpr FastDivmod one(1);
        return branches_[branch].row_dilation == 1 ? one : grid_.branches[branch].dilation;
    }

    int rows_of(const CellBranch &branch, int index, int start, int end) const {
        const int from = std::max(start, sequence_.range_start),
                  to = std::min(end, sequence_.range_start + sequence_.range_count);
        return from < to ? Members(from, to, branch.range_residue, grid_.branches[index].range_dilation).count : 0;
    }
};

// All rows of a grid, whatever they meet.
PartialRows rows_of(const TileGrid &grid) {
    PartialRows rows{}; // with an empty window
    std::ranges::copy(grid.branches, rows.branches);
    rows.branch_count = grid.branch_count;
    return rows;
}

// False where they are too many.
bool add(const PartialRows &more, PartialRows &rows) {
    if (rows.branch_count + more.branch_count > most_branches)
        return false;
    std::copy_n(more.branches, more.branch_count, rows.branches + rows.branch_count);
    rows.branch_count += more.branch_count;
    return true;
}

// Those of a grid's branches that come after so many of the least dilated ones, and these; none where one grid cannot
// take them.
std::optional<std::vector<PlannedGrid>> grids_after(int less_dilated, const PlannedGrid &whole, GridRows rows,
                                                    const Plan &plan, GridOf what, const KernelShape &shape) {
    if (whole.tiles.keys_count_once) // which needs all branches in one grid
        return std::nullopt;
    const int branches = whole.tiles.branch_count;
    std::optional<PlannedGrid> others =
        grid_over(whole, less_dilated, branches - less_dilated, rows, plan, what, shape);
    std::optional<PlannedGrid> last = grid_over(whole, 0, less_dilated, rows, plan, what, shape);
    if (!others || !last)
        return std::nullopt;
    return std::vector{*others, *last};
}

// The two grids, split(how many of the least dilated branches to split off), that are expected to take the least time;
// none where one grid is about as fast.
template <class Split>
std::optional<BranchSplit> fastest_split(const PlannedGrid &whole, const KernelShape &shape, int multiprocessors,
                                         const Split &split) {
    if (whole.curve || whole.tiles.branch_count < 2 || whole.tiles.has_residue_classes ||
        whole.tiles.sequence.row_count == 0)
        return std::nullopt;
    std::optional<BranchSplit> best;
    const double rows_of_whole = GridTime(whole.tiles, shape).on(multiprocessors);
    if (rows_of_whole < least_rows)
        return best;
    const double most = (1 - least_gain) * rows_of_whole;
    double least = most;
    for (int count = 1; count < whole.tiles.branch_count; ++count) {
        std::optional<std::vector<PlannedGrid>> grids = split(count);
        if (!grids)
            continue;
        const GridTime first(grids->front().tiles, shape), last(grids->back().tiles, shape);
        const double rows = first.on(multiprocessors) + last.on(multiprocessors);
        if (rows < least) {
            least = rows;
            best = {*std::move(grids), most, {first.of_tiles(), last.of_tiles()}, multiprocessors};
        }
    }
    return best;
}

} // namespace

bool BranchSplit::is_worth(std::int64_t parts) const {
    if (!has_alternative())
        return true;
    double rows = 0;
    for (std::size_t i = 0; i < grids.size(); ++i) {
        // The tiles of a whole grid even out; those of a part may be few, and the longest then takes a multiprocessor
        // for as long as a round of them.
        const std::int64_t tiles = std::max<std::int64_t>(grids[i].tiles.tiles, 1);
        const std::int64_t rounds = divide_up(divide_up(tiles, parts), multiprocessors);
        const double of_part = parts == 1 ? rows_of_tiles[i] / multiprocessors
                                          : rows_of_tiles[i] / static_cast<double>(tiles) * static_cast<double>(rounds);
        rows += static_cast<double>(parts) * (of_part + rows_of_launch);
    }
    return rows < most_rows;
}

std::optional<SplitParts> BranchSplit::parts_within(const SplitRows &all, std::size_t room) const {
    if (const std::optional<SplitParts> heads = heads_within(all, room))
        return is_worth(count_parts(*heads, all)) ? heads : std::nullopt;
    if (has_alternative())
        return std::nullopt;
    // Parts that fill the row blocks of the most dilated branch; or of whole cells of the last grid, unless a window
    // cuts the first one.
    const TileGrid &last = grids.back().tiles;
    std::int64_t dilation = 1;
    for (const PlannedGrid &planned : grids)
        dilation =
            std::max<std::int64_t>(dilation, planned.tiles.branches[planned.tiles.branch_count - 1].dilation.value);
    return rows_within(all, std::min(room, most_room_of_rows),
                       {row_block_rows * dilation, last.sequence.segment_length, row_block_rows});
}

std::optional<SplitParts> BranchSplit::least_parts(const SplitRows &all) const {
    if (has_alternative())
        return std::nullopt;
    // Parts of r rows take r row_bytes, and their counters rows / r launches sizeof(unsigned), which is least where
    // both are as much.
    const double rows = static_cast<double>(all.batches) * all.heads * all.rows;
    const double least =
        std::sqrt(rows * static_cast<double>(grids.size() * sizeof(unsigned)) / static_cast<double>(all.row_bytes));
    const std::int64_t row_blocks = divide_up(static_cast<std::int64_t>(least) + 1, row_block_rows);
    return SplitParts{1, 1, static_cast<int>(std::min<std::int64_t>(all.rows, row_blocks * row_block_rows))};
}

std::optional<std::vector<PlannedGrid>> split_after(int less_dilated, const PlannedGrid &whole, const Plan &plan,
                                                    GridOf what, const KernelShape &shape) {
    std::optional<std::vector<PlannedGrid>> grids = grids_after(less_dilated, whole, GridRows::all, plan, what, shape);
    if (!grids || !grids->back().is_complete)
        return std::nullopt;
    TileGrid &last = grids->back().tiles;
    last.rows_with_partial = rows_of(grids->front().tiles);
    last.rows_left_partial = rows_with_more_ranges(whole.tiles, what);
    return grids;
}

std::optional<std::vector<PlannedGrid>> as_split(const std::vector<PlannedGrid> &grids, GridOf what) {
    if (grids.size() < 2 || !grids.front().is_complete || grids.front().tiles.has_residue_classes)
        return std::nullopt;
    const TileGrid &last = grids.front().tiles;
    PartialRows left = rows_with_more_ranges(last, what), taken{};
    std::vector<PlannedGrid> result(grids.begin() + 1, grids.end());
    for (const PlannedGrid &other : result)
        if (other.curve || other.tiles.has_residue_classes ||
            other.tiles.sequence.row_count != last.sequence.row_count ||
            !add(rows_with_more_ranges(other.tiles, what), left) || !add(rows_of(other.tiles), taken))
            return std::nullopt;
    result.push_back(grids.front());
    result.back().tiles.rows_left_partial = left;
    result.back().tiles.rows_with_partial = taken;
    return result;
}

std::optional<BranchSplit> split_branches(const std::vector<PlannedGrid> &grids, const Plan &plan, GridOf what,
                                          const KernelShape &shape, int multiprocessors) {
    if (grids.size() != 1) {
        std::optional<std::vector<PlannedGrid>> all = as_split(grids, what);
        if (!all)
            return std::nullopt;
        return BranchSplit{*std::move(all), std::numeric_limits<double>::infinity(), {}, multiprocessors};
    }
    const PlannedGrid &whole = grids.front();
    if (!whole.is_complete)
        return std::nullopt;
    return fastest_split(whole, shape, multiprocessors,
                         [&](int count) { return split_after(count, whole, plan, what, shape); });
}

void split_ranges_elsewhere(std::vector<PlannedGrid> &grids, const Plan &plan, GridOf what, const KernelShape &shape,
                            int multiprocessors) {
    if (grids.size() != 1)
        return;
    std::optional<BranchSplit> split = fastest_split(grids.front(), shape, multiprocessors, [&](int count) {
        return grids_after(count, grids.front(), GridRows::with_ranges, plan, what, shape);
    });
    if (split)
        grids = {std::move(split->grids.back()), std::move(split->grids.front())};
}

} // namespace annulus
