// SPDX-License-Identifier: Apache-2.0
// Makes the grids of a plan: which branches share a grid, and the rows, ranges and tiles of each grid.
#include "cuda/fused/plan/grids.hpp"

#include "cuda/fused/plan/grid_branches.hpp"
#include "cuda/fused/plan/range_merging.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/fused/plan/tuning.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

namespace annulus {

namespace {

// Returns the pattern's branch of a branch's plan.
const Branch &branch_of(const Plan &plan, const BranchPlan &branch) {
    return plan.pattern().branches[static_cast<std::size_t>(branch.index())];
}

// True if the order of the branch differs from the linear order.
bool is_curved(const Branch &branch, const BranchPlan &plan) {
    const auto is_linear = [&](std::int64_t segment) { return plan.segment(segment).curve.is_linear(); };
    return branch.order != ANNULUS_ORDER_LINEAR && plan.dilation() > 1 &&
           !(is_linear(0) && is_linear(plan.segment_count() - 1));
}

// True if some segment of the branch has both queries and keys of the problem.
bool has_pairs(const BranchPlan &branch, const Problem &problem) {
    if (problem.queries.length == 0 || problem.keys.length == 0)
        return false;
    return branch.segment_of(problem.queries.start) <= branch.segment_of(problem.keys.end() - 1) &&
           branch.segment_of(problem.keys.start) <= branch.segment_of(problem.queries.end() - 1);
}

bool cuts_segment(const BranchPlan &branch, const Window &window) {
    const Window last = branch.segment(branch.segment_of(window.end() - 1)).range;
    return window.start % branch.segment_length() != 0 || window.end() != last.end();
}

bool is_complete(const TileGrid &grid, int heads) {
    for (int head = 0; head < heads; ++head)
        if (std::ranges::none_of(branches_of(grid), [&](const GridBranch &branch) {
                return branch.serves(head) && branch.row_rule != ANNULUS_QUERY_DILATED;
            }))
            return false;
    return true;
}

TileGrid grid_without_branches(const Plan &plan, GridResult what) {
    const Problem &problem = plan.problem();
    const bool rows_are_keys = what == GridResult::key_gradients;
    const Window &rows = rows_are_keys ? problem.keys : problem.queries,
                 &ranges = rows_are_keys ? problem.queries : problem.keys;
    TileGrid grid{};
    grid.keys_count_once = plan.keys_count_once();
    grid.causal = plan.causal();
    grid.zero_keys =
        what == GridResult::outputs && plan.pattern().padding_rule == ANNULUS_PADDING_ZERO_KEYS && !plan.causal();
    set_windows(rows, ranges, problem.sequence_length, grid.sequence);
    grid.first_row = grid.sequence.row_start;
    grid.first_range_row = grid.sequence.range_start;
    grid.range_stride = FastDivmod(rows_are_keys ? 1 : static_cast<int>(problem.key_stride));
    grid.batches = static_cast<int>(problem.batch);
    grid.heads = FastDivmod(rows_are_keys ? problem.kv_heads : problem.heads);
    grid.head_step = rows_are_keys ? problem.heads / problem.kv_heads : 1;
    return grid;
}

// Leaves out rows whose segments, or sliding windows, have no ranges. If the ranges are keys at the border of a long
// shard, most rows are left out.
void leave_rows_out(TileGrid &grid) {
    SequenceGrid &sequence = grid.sequence;
    if (grid.zero_keys || sequence.row_count == 0 || sequence.range_count == 0)
        return;
    const int last = sequence.range_start + sequence.range_count - 1;
    int start = sequence.sequence_length, end = 0;
    for (const GridBranch &branch : branches_of(grid)) {
        const FastDivmod &length = branch.length;
        int first = sequence.range_start - length.remainder(sequence.range_start),
            behind = last - length.remainder(last) + length.value;
        if (branch.is_window) {
            first = std::max(first, sequence.range_start - branch.after);
            behind = branch.before < behind - last ? last + branch.before + 1 : behind;
        }
        start = std::min(start, first);
        end = std::max(end, behind);
    }
    const Window rows = intersect(Window{sequence.row_start, sequence.row_count}, Window{start, end - start});
    sequence.row_start = static_cast<int>(rows.start);
    sequence.row_count = static_cast<int>(rows.length);
}

void number_tiles(const PlannedGrid &planned, TileGrid &grid) {
    number_tiles(grid, planned.classes, planned.row_blocks, grid.sequence);
    grid.tiles = count_tiles(grid.sequence.tiles(), {grid.heads.value, grid.batches});
}

// Queries and keys of which each query may meet each key.
struct Area {
    Window queries, keys;
};

// True if the other branches can leave out the pairs of the global branches: there is one, it has all heads, and no
// segment is padded, since each area of a segment would add its padding keys.
bool has_global_area(const Plan &plan) {
    const std::vector<Branch> &branches = plan.pattern().branches;
    const auto global = std::ranges::find(branches, ANNULUS_BRANCH_GLOBAL, &Branch::kind);
    if (global == branches.end() || std::ranges::count(branches, ANNULUS_BRANCH_GLOBAL, &Branch::kind) > 1 ||
        std::ranges::any_of(plan.branches(), &BranchPlan::has_zero_keys))
        return false;
    const BranchPlan &first = *std::ranges::find(plan.branches(), ANNULUS_BRANCH_GLOBAL, &BranchPlan::kind);
    return first.serves(0) && first.serves(plan.problem().heads - 1);
}

// Returns the areas of the branches that are not global. They are the whole sequence, or if keys count once what the
// global branch leaves.
std::vector<Area> areas_of_others(const Plan &plan) {
    const Window whole{0, plan.problem().sequence_length};
    if (!plan.keys_count_once() || !has_global_area(plan))
        return {{whole, whole}};
    const BranchPlan &global = *std::ranges::find(plan.branches(), ANNULUS_BRANCH_GLOBAL, &BranchPlan::kind);
    const Window &positions = global.key_range();
    const std::array around{Window{0, positions.start}, Window{positions.end(), whole.length - positions.end()}};
    const bool has_queries = branch_of(plan, global).has_global_queries;
    std::vector<Area> areas;
    for (const Window &keys : around) {
        if (!has_queries)
            areas.push_back({whole, keys});
        for (const Window &queries : around)
            if (has_queries)
                areas.push_back({queries, keys});
    }
    return areas;
}

// Leaves out rows and range rows outside an area. Returns false if nothing is left.
bool confine(PlannedGrid &planned, const Area &area, GridResult what) {
    SequenceGrid &sequence = planned.tiles.sequence;
    const bool rows_are_keys = what == GridResult::key_gradients;
    const Window all_rows{sequence.row_start, sequence.row_count},
        all_ranges{sequence.range_start, sequence.range_count};
    const Window rows = intersect(all_rows, rows_are_keys ? area.keys : area.queries);
    const Window ranges = intersect(all_ranges, rows_are_keys ? area.queries : area.keys);
    planned.is_confined = rows != all_rows || ranges != all_ranges;
    set_windows(rows, ranges, sequence.sequence_length, sequence);
    return !planned.is_confined || (rows.length > 0 && ranges.length > 0);
}

// Returns the pairs of one of the plans of a global branch in a grid that other branches may share: as queries and keys
// of the grid. If global positions attend, the pairs of the branch are symmetric. So dK and dV then divide them as O
// and dQ do with queries and keys exchanged: the grid of all rows meets few, and few rows meet all others.
Area shared_area_of(const Plan &plan, const BranchPlan &branch, GridResult what) {
    if (what == GridResult::key_gradients && branch_of(plan, branch).has_global_queries)
        return {branch.key_range(), branch.query_range()};
    return {branch.query_range(), branch.key_range()};
}

// Sets everything but the branches.
void finish(PlannedGrid &planned, const Plan &plan, GridResult what, const KernelShape &shape) {
    const Problem &problem = plan.problem();
    TileGrid &grid = planned.tiles;
    planned.is_packed = planned.curve && shape.packs_curves;
    planned.row_blocks = shape.row_blocks;
    const std::int64_t rows_of_ranges = what == GridResult::key_gradients ? problem.queries.length : problem.key_rows();
    set_merging(grid, shape.range_block_rows, rows_of_ranges);
    if (grid.sequence.row_count > 0) {
        planned.classes = *set_levels(grid);
        number_tiles(planned, grid);
    }
    // A row of keys may stand for several positions, of which at most one has queries.
    const bool rows_are_positions = what != GridResult::key_gradients || problem.key_stride == 1;
    const bool has_all_rows =
        grid.sequence.row_count == (what == GridResult::key_gradients ? problem.keys : problem.queries).length;
    planned.fills_rows = rows_are_positions && is_complete(grid, problem.heads);
    planned.is_complete = planned.fills_rows && has_all_rows && !planned.is_confined;
}

} // namespace

std::vector<PlannedGrid> make_grids(const Plan &plan, GridResult what, const KernelShape &shape) {
    const Problem &problem = plan.problem();
    const TileGrid empty = grid_without_branches(plan, what);
    std::vector<GridBranch> linear;
    std::vector<PlannedGrid> over_linear, grids, curved, global;
    std::int64_t orders = 0;
    for (const BranchPlan &branch : plan.branches()) {
        if (!empty.zero_keys && !has_pairs(branch, problem))
            continue;
        if (branch.kind() == ANNULUS_BRANCH_GLOBAL) {
            const bool is_shared = !plan.keys_count_once();
            const Area area =
                is_shared ? shared_area_of(plan, branch, what) : Area{branch.query_range(), branch.key_range()};
            PlannedGrid part{*with_branch(empty, make_branch(branch, what)), false};
            part.tiles.zero_keys = false;
            if (!confine(part, area, what))
                continue;
            const bool rows_are_keys = what == GridResult::key_gradients;
            if (is_shared && (rows_are_keys ? area.keys : area.queries).length == problem.sequence_length)
                linear.push_back(make_global_branch(branch, what, rows_are_keys ? area.queries : area.keys));
            else
                global.push_back(std::move(part));
        } else if (!is_curved(branch_of(plan, branch), branch)) {
            linear.push_back(make_branch(branch, what));
        } else if (has_pairs(branch, problem)) {
            curved.push_back({*with_branch(empty, make_branch(branch, what)), false, &branch, orders});
            const Window window = intersect(problem.queries, problem.keys);
            set_windows(window, window, problem.sequence_length, curved.back().tiles.sequence);
            orders += curve_order_length(branch);
        }
    }
    std::ranges::stable_sort(linear, comes_before);
    for (const GridBranch &branch : linear) {
        const bool is_taken = std::any_of(over_linear.begin(), over_linear.end(), [&](PlannedGrid &planned) {
            const std::optional<TileGrid> more = with_branch(planned.tiles, branch);
            if (more)
                planned.tiles = *more;
            return more.has_value();
        });
        if (!is_taken)
            over_linear.push_back({*with_branch(empty, branch), false});
    }
    int areas = 0;
    for (const Area &area : areas_of_others(plan)) {
        for (PlannedGrid planned : over_linear)
            if (confine(planned, area, what)) {
                planned.area = areas;
                leave_rows_out(planned.tiles);
                grids.push_back(std::move(planned));
            }
        ++areas;
    }
    grids.insert(grids.end(), curved.begin(), curved.end());
    for (PlannedGrid &planned : global) {
        planned.area = has_global_area(plan) && curved.empty() ? areas++ : 0;
        grids.push_back(std::move(planned));
    }

    for (PlannedGrid &planned : grids)
        finish(planned, plan, what, shape);
    return grids;
}

std::optional<PlannedGrid> grid_over(std::span<const GridBranch> branches, GridRows rows, const Plan &plan,
                                     GridResult what, const KernelShape &shape) {
    PlannedGrid result{grid_without_branches(plan, what), false};
    for (const GridBranch &branch : branches) {
        const std::optional<TileGrid> more = with_branch(result.tiles, branch);
        if (!more)
            return std::nullopt;
        result.tiles = *more;
    }
    if (rows == GridRows::with_ranges)
        leave_rows_out(result.tiles);
    finish(result, plan, what, shape);
    if (result.tiles.tiles >= too_many_tiles)
        return std::nullopt;
    return result;
}

void restrict_grid(const PlannedGrid &planned, const GridPart &part, TileGrid &tiles) {
    const auto count = [](int value) { return static_cast<unsigned>(value); };
    tiles.first_head = part.first_head;
    if (tiles.sequence_count > 0) { // the grid is over all batch entries
        tiles.heads = FastDivmod(part.heads);
        tiles.tiles = count(tiles.tiles_of_head.value) * count(part.heads);
        return;
    }
    const unsigned before = count(tiles.heads.value * tiles.batches), heads = count(part.heads * part.batches);
    tiles.tiles = tiles.tiles / before * heads;
    tiles.first_batch = part.first_batch;
    tiles.batches = part.batches;
    tiles.heads = FastDivmod(part.heads);
    if (part.rows.length > 0) {
        SequenceGrid &sequence = tiles.sequence;
        const Window rows = intersect(Window{sequence.row_start, sequence.row_count}, part.rows);
        sequence.row_start = static_cast<int>(rows.start);
        sequence.row_count = static_cast<int>(rows.length);
        number_tiles(planned, tiles);
    }
    if (part.segments == 0)
        return;
    tiles.sequence.first_segment = part.first_segment;
    tiles.sequence.segments = part.segments;
    tiles.sequence.sections = FastDivmod(part.segments); // of one segment each
    tiles.tiles = count(tiles.sequence.tiles_of_cell.value) * count(part.segments) * heads;
}

bool go_by_length(const TileGrid &tiles, int multiprocessors) {
    return tiles.sequence_count == 0 && tiles.tiles_differ() &&
           tiles.tiles < tuning::by_length_tiles * static_cast<unsigned>(multiprocessors);
}

int largest_dilation(std::span<const PlannedGrid> grids) {
    int largest = 1;
    for (const PlannedGrid &planned : grids)
        for (const GridBranch &branch : branches_of(planned.tiles))
            largest = std::max(largest, branch.dilation.value);
    return largest;
}

PartialRows rows_with_more_ranges(const TileGrid &grid, GridResult what, int largest_dilation) {
    PartialRows rows{};
    const SequenceGrid &sequence = grid.sequence;
    const int range_end = sequence.range_start + sequence.range_count;
    const bool has_next = range_end < sequence.sequence_length;
    // Under causality queries meet nothing after them, keys nothing before them.
    const bool rows_are_keys = what == GridResult::key_gradients;
    rows.window_start = grid.causal && rows_are_keys ? 0 : sequence.range_start;
    rows.window_end = !has_next || (grid.causal && !rows_are_keys) ? std::numeric_limits<int>::max() : range_end;
    for (const GridBranch &branch : branches_of(grid)) {
        const bool leaves_at_end = has_next && branch.length.remainder(range_end) != 0;
        if (branch.length.remainder(rows.window_start) != 0 || (rows.window_end == range_end && leaves_at_end))
            rows.branches[rows.branch_count++] = branch;
    }
    // A launch over the ranges elsewhere finishes whole row blocks, of which some rows may reach no range there. Its
    // row blocks are not those of this grid, but their rows are no further apart than the largest dilation.
    const std::int64_t margin = std::int64_t{row_block_rows} * largest_dilation;
    for (GridBranch &branch : std::span(rows.branches, static_cast<std::size_t>(rows.branch_count)))
        if (branch.is_window)
            for (int *reach : {&branch.before, &branch.after})
                *reach = static_cast<int>(std::min<std::int64_t>(*reach + margin, sequence.sequence_length));
    return rows;
}

PartialRows rows_outside(const TileGrid &grid, int heads) {
    PartialRows rows{};
    rows.window_start = grid.sequence.row_start;
    rows.window_end = grid.sequence.row_start + grid.sequence.row_count;
    GridBranch &itself = rows.branches[rows.branch_count++]; // a window in which each row meets its own position alone
    itself.length = FastDivmod(grid.sequence.sequence_length);
    itself.head_count = heads;
    itself.is_window = true;
    itself.row_rule = ANNULUS_QUERY_EVERY;
    return rows;
}

std::int64_t curve_order_length(const BranchPlan &branch) {
    const std::int64_t last = branch.segment(branch.segment_count() - 1).range.length;
    return branch.segment_length() + (last < branch.segment_length() ? last : 0);
}

const char *curve_refusal(const Plan &plan) {
    const Problem &problem = plan.problem();
    for (const BranchPlan &branch : plan.branches()) {
        if (!is_curved(branch_of(plan, branch), branch) || !has_pairs(branch, problem))
            continue;
        if (cuts_segment(branch, problem.queries) || cuts_segment(branch, problem.keys))
            return "a window or shard cuts a segment in Hilbert order";
        if (plan.causal() && !branch.queries_are_class())
            return "it has no causality in Hilbert order for the query rule every";
    }
    return nullptr;
}

namespace {

// True if no two grids share an area.
bool are_apart(const std::vector<PlannedGrid> &grids) {
    for (std::size_t i = 1; i < grids.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
            if (grids[i].area == grids[j].area)
                return false;
    return true;
}

bool are_too_many(const std::vector<PlannedGrid> &grids) {
    return std::ranges::any_of(grids, [](const PlannedGrid &planned) { return planned.tiles.tiles >= too_many_tiles; });
}

} // namespace

const char *grids_refusal(const Plan &plan, const std::vector<PlannedGrid> &grids) {
    if (!plan.keys_count_once() || are_apart(grids))
        return are_too_many(grids) ? "there are too many small segments" : nullptr;
    if (plan.has_global_positions())
        return "beside global positions it counts keys once if the global positions are one branch with all heads, and "
               "the other branches are linear, not padded, and in one grid";
    if (plan.has_windows())
        return "beside windows it counts keys once if dilations divide one another, query rules are alike, and there "
               "are up to four windows, or with causality eight, or fewer beside segments";
    return "it counts keys once for up to 8 branches in linear order whose dilations divide one another and whose "
           "query rules are alike";
}

} // namespace annulus
