// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/grid_branches.hpp"

#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/fused/plan/tuning.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace annulus {

namespace {

int smallest_prime_factor(int x) {
    for (int p = 2; p <= x / p; ++p)
        if (x % p == 0)
            return p;
    return x;
}

// True if a row block may have rows of one branch of which some are rows of the other branch and some are not.
bool mixes_rules(const GridBranch &a, const GridBranch &b) {
    const bool differ = a.row_rule != b.row_rule || (a.range_dilation.value == 1) != (b.range_dilation.value == 1);
    return a.dilation.value > 1 && b.dilation.value > 1 && differ;
}

// Returns the greatest number of ranges of a tile if keys count once and some branch is a window. On each side of what
// other branches visit, a branch has a range, and one more for first rows that a window hides.
int ranges_around_windows(const TileGrid &grid) {
    const auto windows = static_cast<int>(std::ranges::count_if(branches_of(grid), &GridBranch::is_window));
    const int others = grid.branch_count - windows;
    return grid.causal ? 2 * windows + others : 4 * windows + 3 * others;
}

} // namespace

GridBranch make_branch(const BranchPlan &branch, GridResult what) {
    const bool rows_are_keys = what == GridResult::key_gradients;
    const std::int64_t row_stride = rows_are_keys ? branch.dilation() : branch.query_stride();
    const std::int64_t range_stride = rows_are_keys ? branch.query_stride() : branch.dilation();
    GridBranch result{};
    result.length = FastDivmod(static_cast<int>(branch.segment_length()));
    result.dilation = FastDivmod(static_cast<int>(branch.dilation()));
    result.range_dilation = FastDivmod(static_cast<int>(range_stride));
    result.first_head = branch.first_head();
    result.head_count = branch.head_count();
    result.heads_of_phase = FastDivmod(static_cast<int>(branch.heads_of_phase()));
    result.first_phase = static_cast<int>(branch.first_phase());
    const KeyBounds &bounds = branch.bounds(); // of keys around a query; queries around a key are its mirror image
    result.before = static_cast<int>(rows_are_keys ? bounds.after : bounds.before);
    result.after = static_cast<int>(rows_are_keys ? bounds.before : bounds.after);
    result.is_window = branch.kind() == ANNULUS_BRANCH_WINDOW;
    result.range_end = static_cast<int>(position_limit);
    if (row_stride == 1)
        result.row_rule = ANNULUS_QUERY_EVERY;
    else
        result.row_rule = branch.has_all_residues() ? ANNULUS_QUERY_RESIDUE : ANNULUS_QUERY_DILATED;
    return result;
}

GridBranch make_global_branch(const BranchPlan &branch, GridResult what, const Window &ranges) {
    GridBranch result = make_branch(branch, what);
    result.is_window = true;
    result.range_start = static_cast<int>(ranges.start);
    result.range_end = static_cast<int>(ranges.end());
    return result;
}

std::optional<int> set_levels(TileGrid &grid) {
    const std::span<const GridBranch> branches = branches_of(grid);
    if (grid.has_residue_classes || grid.branch_count == 1)
        return 1;
    int classes = 1, visits = 1, level = 0, modulus = 1;
    grid.levels[0] = FastDivmod(1);
    for (;;) {
        const auto is_finer = [&](const GridBranch &branch) {
            return divides_rows(branch) && branch.dilation.value > modulus;
        };
        const auto next = std::find_if(branches.begin(), branches.end(), is_finer);
        if (next == branches.end())
            return classes;
        const int parts = smallest_prime_factor(next->dilation.value / modulus);
        const int divided =
            static_cast<int>(std::min<std::ptrdiff_t>(modulus, std::count_if(next, branches.end(), is_finer)));
        visits += divided * parts;
        classes += divided * (parts - 1);
        if (classes > max_classes || visits > tuning::max_class_visits)
            return std::nullopt;
        modulus *= parts;
        grid.levels[++level] = FastDivmod(modulus);
    }
}

std::optional<TileGrid> with_branch(TileGrid grid, const GridBranch &branch) {
    if (grid.branch_count == max_branches)
        return std::nullopt;
    if (grid.branch_count > 0 && branch.dilation.value % grid.branches[grid.branch_count - 1].dilation.value != 0)
        return std::nullopt;
    const auto has_rule = [&](annulus_query_rule rule) {
        return std::ranges::any_of(branches_of(grid), [&](const GridBranch &other) { return other.row_rule == rule; });
    };
    if (branch.row_rule == ANNULUS_QUERY_RESIDUE) {
        if (has_rule(ANNULUS_QUERY_DILATED))
            return std::nullopt;
        grid.has_residue_classes = true;
        grid.residue_classes = branch.dilation;
    } else if (branch.row_rule == ANNULUS_QUERY_DILATED && has_rule(ANNULUS_QUERY_RESIDUE)) {
        return std::nullopt;
    }
    if (grid.keys_count_once &&
        std::ranges::any_of(branches_of(grid), [&](const GridBranch &other) { return mixes_rules(branch, other); }))
        return std::nullopt;
    grid.sequence.lengths[grid.branch_count] = branch.length;
    grid.branches[grid.branch_count++] = branch;
    grid.has_windows |= branch.is_window;
    if (grid.keys_count_once && grid.has_windows && ranges_around_windows(grid) > max_ranges)
        return std::nullopt;
    if (!set_levels(grid))
        return std::nullopt;
    return grid;
}

} // namespace annulus
