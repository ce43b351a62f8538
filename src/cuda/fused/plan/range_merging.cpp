// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/range_merging.hpp"

#include "core/progression.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/plan/tuning.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace annulus {

namespace {

// The effect of merging branches of up to `ratio` times the dilation. Windows are not merged.
class Merging {
  public:
    Merging(const TileGrid &grid, int ratio) : grid_(grid), ratio_(ratio) {
        for (int i = 0; i < grid.branch_count; ++i)
            if (!grid.branches[i].is_window)
                merged_.push_back(i);
    }

    // Returns the strides of the ranges, in positions.
    std::vector<int> strides() const {
        std::vector<int> result;
        for (const GridBranch &branch : branches_of(grid_))
            result.push_back(branch.range_dilation.value);
        for (int i = 0; i < count(); ++i)
            for (int j = i + 1; j < count(); ++j)
                if (merges(i, j))
                    result.push_back(dilation(i) * splits_of_period(period(i, j)));
        std::sort(result.begin(), result.end());
        result.erase(std::unique(result.begin(), result.end()), result.end());
        return result;
    }

    // Returns the greatest number of ranges of a tile. A merged branch has range rows to the left and right of the rows
    // that it does not visit. A window has a range for the first rows that it hides.
    int ranges() const {
        int sum = 2 * (grid_.branch_count - count());
        for (int i = 0; i < count(); ++i) {
            const bool may_merge = i > 0 && merges(i - 1, i);
            const int merged = may_merge ? (grid_.causal ? 1 : 2) * splits_of(i, dilation(i - 1)) : 0;
            sum += std::max(merged, splits_of(i, dilation(i)));
        }
        return sum;
    }

    // Returns the number of blocks in the ranges of a query that takes part in all branches, without windows. Segments
    // and classes are assumed to be nested.
    std::int64_t blocks(int block_rows) const {
        std::int64_t sum = 0;
        int root = 0;
        for (int i = 0; i < count(); ++i) {
            const bool is_merged = i > 0 && merges(root, i);
            if (!is_merged)
                root = i;
            const int sides = is_merged && !grid_.causal ? 2 : 1;
            const int parts = sides * splits_of(i, dilation(root));
            const int positions = length(i) - (is_merged ? length(i - 1) : 0);
            sum += parts * divide_up(std::max(positions, 0), std::int64_t{dilation(i)} * parts * block_rows);
        }
        return sum;
    }

  private:
    // Branch i is the i-th that is no window.
    int count() const { return static_cast<int>(merged_.size()); }
    int length(int i) const { return branch(i).length.value; }
    int dilation(int i) const { return branch(i).range_dilation.value; }
    const GridBranch &branch(int i) const { return grid_.branches[merged_[static_cast<std::size_t>(i)]]; }
    int period(int i, int j) const { return dilation(j) / dilation(i); }
    bool merges(int i, int j) const { return ratio_ > 0 && period(i, j) <= ratio_; }
    // Returns the greatest number of ranges into which branch i is split. Branches are merged up to `ratio` times the
    // dilation `root`.
    int splits_of(int i, int root) const {
        int max_splits = 1;
        for (int j = i + 1; j < count(); ++j)
            if (ratio_ > 0 && dilation(j) / root <= ratio_)
                max_splits = std::max(max_splits, splits_of_period(period(i, j)));
        return max_splits;
    }

    const TileGrid &grid_;
    const int ratio_;
    std::vector<int> merged_; // indices of the branches that are no windows
};

} // namespace

void set_merging(TileGrid &grid, int block_rows, std::int64_t rows_of_ranges) {
    const auto fits = [&](const Merging &merging) {
        return merging.ranges() <= max_ranges && merging.strides().size() <= max_strides;
    };
    // If keys count once, no range is split. Each branch has a range on either side of the rows that it leaves to other
    // branches.
    static_assert(2 * max_branches <= max_ranges);
    const bool may_merge =
        !grid.keys_count_once && std::ranges::all_of(branches_of(grid), [](const GridBranch &branch) {
            return branch.range_dilation.value == branch.dilation.value;
        });
    for (const int ratio : tuning::merged_ratios) {
        const Merging merging(grid, ratio);
        if (may_merge && fits(merging) &&
            merging.blocks(block_rows) < Merging(grid, grid.merged_ratio).blocks(block_rows))
            grid.merged_ratio = ratio;
    }
    for (const int stride : Merging(grid, grid.merged_ratio).strides()) {
        // If another branch has left rows to this one, this range may have a single row. Then any stride will do.
        const FastDivmod row_stride(grid.range_stride.remainder(stride) == 0 ? grid.range_stride.quotient(stride) : 1);
        const std::span<const FastDivmod> found(grid.strides, static_cast<std::size_t>(grid.stride_count));
        if (std::ranges::any_of(found, [&](const FastDivmod &other) { return other.value == row_stride.value; }))
            continue;
        grid.strides[grid.stride_count] = row_stride;
        grid.longer_residues[grid.stride_count++] = row_stride.remainder(static_cast<int>(rows_of_ranges));
    }
}

} // namespace annulus
