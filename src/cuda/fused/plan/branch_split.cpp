// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/branch_split.hpp"

#include "cuda/fused/plan/grid_time.hpp"
#include "cuda/fused/plan/tuning.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace annulus {

namespace {

// Returns the time of a launch whose tiles share the multiprocessors. All times here are in range rows (grid_time.hpp).
double launch_time(int multiprocessors, double all_tiles) {
    return all_tiles / multiprocessors + tuning::launch_rows;
}

std::vector<GridBranch> branches_of(std::span<const PlannedGrid> grids) {
    std::vector<GridBranch> all;
    for (const PlannedGrid &planned : grids)
        all.insert(all.end(), branches_of(planned.tiles).begin(), branches_of(planned.tiles).end());
    return all;
}

// Returns all rows of a grid, whatever they meet.
PartialRows rows_of(const TileGrid &grid) {
    PartialRows rows{}; // the window is empty
    std::ranges::copy(grid.branches, rows.branches);
    rows.branch_count = grid.branch_count;
    return rows;
}

// Adds the branches of `more` to `rows`. Returns false if there are too many.
bool add(const PartialRows &more, PartialRows &rows) {
    if (rows.branch_count + more.branch_count > max_branches)
        return false;
    std::copy_n(more.branches, more.branch_count, rows.branches + rows.branch_count);
    rows.branch_count += more.branch_count;
    return true;
}

// Returns two grids: one over all but the `less_dilated` least dilated branches, then one over the less dilated ones.
// Returns none if a grid cannot take its branches.
std::optional<std::vector<PlannedGrid>> grids_after(int less_dilated, const PlannedGrid &whole, GridRows rows,
                                                    const Plan &plan, GridResult what, const KernelShape &shape) {
    if (whole.tiles.keys_count_once) // keys that count once need all branches in one grid
        return std::nullopt;
    const auto split_index = static_cast<std::size_t>(less_dilated);
    const std::span<const GridBranch> branches = branches_of(whole.tiles);
    std::optional<PlannedGrid> more_dilated = grid_over(branches.subspan(split_index), rows, plan, what, shape);
    std::optional<PlannedGrid> last = grid_over(branches.first(split_index), rows, plan, what, shape);
    if (!more_dilated || !last)
        return std::nullopt;
    return std::vector{*more_dilated, *last};
}

// Returns the two grids that are expected to take the least time. split(n) splits off the n least dilated branches.
// Returns none if one grid is about as fast.
template <class Split>
std::optional<BranchSplit> fastest_split(const PlannedGrid &whole, const KernelShape &shape, int multiprocessors,
                                         const Split &split) {
    if (whole.curve || whole.tiles.branch_count < 2 || whole.tiles.has_residue_classes ||
        whole.tiles.sequence.row_count == 0)
        return std::nullopt;
    std::optional<BranchSplit> best;
    const double whole_time = launch_time(multiprocessors, time_of_tiles(whole.tiles, shape));
    if (whole_time < tuning::min_time_to_split)
        return best;
    const double max_time = (1 - tuning::min_gain) * whole_time;
    double min_time = max_time;
    for (int count = 1; count < whole.tiles.branch_count; ++count) {
        std::optional<std::vector<PlannedGrid>> grids = split(count);
        if (!grids)
            continue;
        const double first = time_of_tiles(grids->front().tiles, shape);
        const double last = time_of_tiles(grids->back().tiles, shape);
        const double time = launch_time(multiprocessors, first) + launch_time(multiprocessors, last);
        if (time < min_time) {
            min_time = time;
            best = {*std::move(grids), max_time, {first, last}, multiprocessors};
        }
    }
    return best;
}

// Divides the branches of several grids anew, into the grids that are expected to take the least time. The grid over
// the least dilated branches comes first. Returns none if the branches cannot be divided anew.
std::optional<std::vector<PlannedGrid>> fastest_grids(const std::vector<PlannedGrid> &grids, const Plan &plan,
                                                      GridResult what, const KernelShape &shape, int multiprocessors) {
    for (const PlannedGrid &planned : grids)
        if (planned.curve || planned.is_confined || planned.tiles.has_residue_classes ||
            planned.tiles.sequence.row_count == 0)
            return std::nullopt;
    std::vector<GridBranch> branches = branches_of(grids);
    if (branches.size() > 2 * max_branches) // the branches of one grid and of PartialRows
        return std::nullopt;
    std::ranges::stable_sort(branches, comes_before);
    // For the first 0, 1, … branches: the least time, and the last of the grids that take it.
    struct Best {
        double time = std::numeric_limits<double>::infinity();
        std::size_t first_of_last = 0;
        std::optional<PlannedGrid> last{};
    };
    std::vector<Best> best(branches.size() + 1);
    best[0].time = 0;
    for (std::size_t end = 1; end <= branches.size(); ++end)
        for (std::size_t first = 0; first < end; ++first) {
            std::optional<PlannedGrid> last =
                grid_over(std::span(branches).subspan(first, end - first), GridRows::all, plan, what, shape);
            if (!last)
                continue;
            const double time = best[first].time + launch_time(multiprocessors, time_of_tiles(last->tiles, shape));
            if (time < best[end].time)
                best[end] = {time, first, std::move(last)};
        }
    std::vector<PlannedGrid> result;
    for (std::size_t end = branches.size(); end > 0; end = best[end].first_of_last) {
        if (!best[end].last) // there would be too many tiles
            return std::nullopt;
        result.push_back(*best[end].last);
    }
    std::ranges::reverse(result);
    return result;
}

// Returns parts of the rows of a head that fit into `room` bytes. Their size is a multiple of the first of `multiples`
// that fits. Returns none if no multiple fits.
std::optional<SplitParts> rows_within(const SplitRows &all, std::size_t room,
                                      std::initializer_list<std::int64_t> multiples) {
    const auto max_rows = static_cast<std::int64_t>(room / all.row_bytes);
    const auto multiple = std::ranges::find_if(multiples, [&](std::int64_t x) { return x <= max_rows; });
    if (multiple == multiples.end())
        return std::nullopt;
    const std::int64_t pieces = divide_up(all.rows, *multiple);
    const std::int64_t parts = divide_up(pieces, max_rows / *multiple);
    return SplitParts{1, 1, static_cast<int>(std::min<std::int64_t>(all.rows, divide_up(pieces, parts) * *multiple))};
}

} // namespace

std::optional<SplitParts> heads_within(const SplitRows &all, std::size_t room) {
    const auto rows = static_cast<std::size_t>(partial_rows_of(all.rows, all.stride));
    const std::size_t head_bytes = std::max<std::size_t>(rows * all.row_bytes, 1);
    const auto max_heads = static_cast<std::int64_t>(room / head_bytes);
    if (max_heads == 0)
        return std::nullopt;
    if (max_heads < all.heads)
        return SplitParts{1, static_cast<int>(divide_up(all.heads, divide_up(all.heads, max_heads))), all.rows,
                          all.stride};
    return SplitParts{static_cast<int>(std::min<std::int64_t>(all.batches, max_heads / all.heads)), all.heads, all.rows,
                      all.stride};
}

std::int64_t count_parts(const SplitParts &parts, const SplitRows &all) {
    return divide_up(all.batches, std::max(parts.batches, 1)) * divide_up(all.heads, std::max(parts.heads, 1)) *
           divide_up(all.rows, std::max(parts.rows, 1));
}

double time_of_launches(const std::vector<PlannedGrid> &grids, const KernelShape &shape, int multiprocessors) {
    double time = 0;
    for (const PlannedGrid &planned : grids)
        time += launch_time(multiprocessors, time_of_tiles(planned.tiles, shape));
    return time;
}

// In a segment, the rows of a head that take part in a branch are one class modulo the dilation. So all such rows are
// one class modulo a common divisor of three numbers: the dilations, the starts of the segments, and the distances
// between the branches' classes.
int BranchSplit::partial_stride(int heads) const {
    const int rows = grids.back().tiles.sequence.sequence_length;
    // The branches of all grids that leave partial results.
    const std::vector<GridBranch> branches = branches_of(std::span(grids).first(grids.size() - 1));
    int stride = 0;
    for (const GridBranch &branch : branches) {
        stride = std::gcd(stride, branch.row_rule == ANNULUS_QUERY_DILATED ? branch.dilation.value : 1);
        if (branch.length.value < rows)
            stride = std::gcd(stride, branch.length.value);
    }
    for (int head = 0; head < heads; ++head) {
        std::optional<int> phase;
        for (const GridBranch &branch : branches)
            if (branch.serves(head)) {
                stride = std::gcd(stride, branch.phase(head) - phase.value_or(branch.phase(head)));
                phase = branch.phase(head);
            }
    }
    return stride;
}

bool BranchSplit::is_worth(std::int64_t parts) const {
    if (!has_alternative())
        return true;
    double time = 0;
    for (std::size_t i = 0; i < grids.size(); ++i) {
        // In a whole grid the times of tiles even out. A part may have few tiles. Then each round of tiles takes as
        // long as its longest tile.
        const std::int64_t tiles = std::max<std::int64_t>(grids[i].tiles.tiles, 1);
        const std::int64_t rounds = divide_up(divide_up(tiles, parts), multiprocessors);
        const double part_time = parts == 1 ? tile_times[i] / multiprocessors
                                            : tile_times[i] / static_cast<double>(tiles) * static_cast<double>(rounds);
        time += static_cast<double>(parts) * (part_time + tuning::launch_rows);
    }
    return time < max_time;
}

std::optional<SplitParts> BranchSplit::parts_within(const SplitRows &all, std::size_t room) const {
    if (const std::optional<SplitParts> heads = heads_within(all, room))
        return is_worth(count_parts(*heads, all)) ? heads : std::nullopt;
    if (has_alternative())
        return std::nullopt;
    // A part preferably fills the row blocks of the most dilated branch. Otherwise it is whole cells of the last grid,
    // unless a window cuts the first cell.
    const TileGrid &last = grids.back().tiles;
    std::int64_t dilation = 1;
    for (const PlannedGrid &planned : grids)
        dilation = std::max<std::int64_t>(dilation, branches_of(planned.tiles).back().dilation.value);
    return rows_within(all, std::min(room, tuning::max_room_for_rows),
                       {row_block_rows * dilation, last.sequence.segment_length, row_block_rows});
}

std::optional<SplitParts> BranchSplit::least_parts(const SplitRows &all) const {
    if (has_alternative())
        return std::nullopt;
    // Parts of r rows need r · row_bytes for partial results. Their counters need (rows / r) · grids ·
    // sizeof(unsigned). The sum is least if both are equal.
    const double rows = static_cast<double>(all.batches) * all.heads * all.rows;
    const double part_rows =
        std::sqrt(rows * static_cast<double>(grids.size() * sizeof(unsigned)) / static_cast<double>(all.row_bytes));
    const std::int64_t row_blocks = divide_up(static_cast<std::int64_t>(part_rows) + 1, row_block_rows);
    return SplitParts{1, 1, static_cast<int>(std::min<std::int64_t>(all.rows, row_blocks * row_block_rows))};
}

std::optional<std::vector<PlannedGrid>> split_after(int less_dilated, const PlannedGrid &whole, const Plan &plan,
                                                    GridResult what, const KernelShape &shape) {
    std::optional<std::vector<PlannedGrid>> grids = grids_after(less_dilated, whole, GridRows::all, plan, what, shape);
    if (!grids || !grids->back().is_complete)
        return std::nullopt;
    TileGrid &last = grids->back().tiles;
    last.rows_with_partial = rows_of(grids->front().tiles);
    last.rows_left_partial = rows_with_more_ranges(whole.tiles, what, largest_dilation({&whole, 1}));
    return grids;
}

std::optional<std::vector<PlannedGrid>> as_split(const std::vector<PlannedGrid> &grids, GridResult what) {
    if (grids.size() < 2 || !grids.front().is_complete || grids.front().tiles.has_residue_classes)
        return std::nullopt;
    const TileGrid &last = grids.front().tiles;
    const int dilation = largest_dilation(grids);
    PartialRows left = rows_with_more_ranges(last, what, dilation), added{};
    std::vector<PlannedGrid> result(grids.begin() + 1, grids.end());
    for (const PlannedGrid &other : result)
        if (other.curve || other.is_confined || other.tiles.has_residue_classes ||
            other.tiles.sequence.row_count != last.sequence.row_count ||
            !add(rows_with_more_ranges(other.tiles, what, dilation), left) || !add(rows_of(other.tiles), added))
            return std::nullopt;
    result.push_back(grids.front());
    result.back().tiles.rows_left_partial = left;
    result.back().tiles.rows_with_partial = added;
    return result;
}

std::optional<BranchSplit> split_branches(const std::vector<PlannedGrid> &grids, const Plan &plan, GridResult what,
                                          const KernelShape &shape, int multiprocessors, std::size_t max_grids) {
    if (grids.size() > 1) {
        std::optional<std::vector<PlannedGrid>> all = fastest_grids(grids, plan, what, shape, multiprocessors);
        if (all)
            all = all->size() <= max_grids ? as_split(*all, what) : std::nullopt;
        if (!all)
            all = as_split(grids, what);
        if (!all || all->size() > max_grids)
            return std::nullopt;
        return BranchSplit{*std::move(all), std::numeric_limits<double>::infinity(), {}, multiprocessors};
    }
    if (grids.empty() || !grids.front().is_complete)
        return std::nullopt;
    const PlannedGrid &whole = grids.front();
    return fastest_split(whole, shape, multiprocessors,
                         [&](int count) { return split_after(count, whole, plan, what, shape); });
}

void split_ranges_elsewhere(std::vector<PlannedGrid> &grids, const Plan &plan, GridResult what,
                            const KernelShape &shape, int multiprocessors) {
    if (grids.size() != 1)
        return;
    std::optional<BranchSplit> split = fastest_split(grids.front(), shape, multiprocessors, [&](int count) {
        return grids_after(count, grids.front(), GridRows::with_ranges, plan, what, shape);
    });
    if (split)
        grids = {std::move(split->grids.back()), std::move(split->grids.front())};
}

} // namespace annulus
