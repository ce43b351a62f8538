// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/grid_time.hpp"

#include "core/progression.hpp"
#include "cuda/fused/plan/tuning.hpp"
#include "cuda/fused/schedule/cell.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace annulus {

namespace {

// The row blocks of a cell that are in one class.
struct RowBlocksOfClass {
    std::int64_t met_rows; // range rows that they meet; more, if a window hides some
    int row_blocks;
    int stride;        // of their rows
    unsigned branches; // a bit for each branch that they take part in
};

// Estimates the time of a grid from a few of its cells. It finds only the numbers that matter, in the same way as
// find_ranges.cuh. Causality is assumed to halve the time.
class TileTime {
  public:
    TileTime(const TileGrid &grid, const KernelShape &shape) : grid_(grid), shape_(shape) {
        const std::int64_t heads = grid.heads.value, segments = grid.sequence.segments;
        const int samples = static_cast<int>(std::min<std::int64_t>(tuning::max_samples, heads * segments));
        for (int i = 0; i < samples; ++i) // heads and segments are sampled evenly (Roberts, 2018)
            visit_segment(sample(i, 0.7548776662466927, heads) * grid.head_step,
                          sample(i, 0.5698402909980532, segments));
        all_ *= static_cast<double>(heads * segments) / samples * grid.batches * (grid.causal ? 0.5 : 1);
    }

    double all_tiles() const { return all_; }

  private:
    using RowBlockCounts = std::array<int, max_branches>; // for each branch, how many take part in it

    static int sample(int i, double step, std::int64_t all) {
        const double x = 0.5 + i * step;
        return static_cast<int>((x - std::floor(x)) * static_cast<double>(all));
    }

    const TileGrid &grid_;
    const SequenceGrid &sequence_ = grid_.sequence;
    const KernelShape &shape_;
    double all_ = 0; // of all tiles
    // The branches of the current cell and of its current tile, and the classes of the cell.
    std::vector<CellBranch> branches_, tile_branches_;
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
            std::int64_t met_rows = 0;
            for (int i = 0; i < grid_.branch_count; ++i)
                if (members >> i & 1)
                    met_rows += rows_of(branches_[i], i, branches_[i].start, branches_[i].end);
            if (members)
                classes_.push_back(
                    {met_rows, static_cast<int>(divide_up(rows, row_block_rows)), modulus.value, members});
        };
        if (grid_.branch_count == 1)
            add(branches_[0].row_residue, row_divisor(0), branches_[0].serves);
        else
            for_each_class(0, 0, add);
        std::ranges::stable_sort(classes_, std::greater(), &RowBlocksOfClass::met_rows);

        // Tiles within a class are alike. A tile between classes has the end of one class and the beginning of the next
        // ones.
        int row_blocks = 0, stride = 1;
        unsigned active = 0;
        RowBlockCounts branch_row_blocks{};
        const auto put = [&](const RowBlocksOfClass &class_blocks, int count) {
            if (count == 0)
                return;
            row_blocks += count;
            active |= class_blocks.branches;
            stride = std::max(stride, class_blocks.stride);
            for (std::size_t i = 0; i < branches_.size(); ++i)
                branch_row_blocks[i] += (class_blocks.branches >> i & 1) * count;
        };
        const auto finish = [&](int tiles) {
            if (row_blocks > 0)
                visit_tile(active, branch_row_blocks, std::int64_t{row_blocks} * row_block_rows * stride, tiles);
            row_blocks = 0;
            stride = 1;
            active = 0;
            branch_row_blocks = {};
        };
        for (const RowBlocksOfClass &class_blocks : classes_) {
            int left = class_blocks.row_blocks;
            const int before = std::min(left, (shape_.row_blocks - row_blocks) % shape_.row_blocks);
            put(class_blocks, before);
            left -= before;
            if (row_blocks == shape_.row_blocks)
                finish(1);
            if (const int tiles = left / shape_.row_blocks; tiles > 0) {
                put(class_blocks, shape_.row_blocks);
                finish(tiles);
            }
            put(class_blocks, left % shape_.row_blocks);
        }
        finish(1);
    }

    // Calls use(residue, modulus, branches) for each class of row blocks.
    template <class Use> void for_each_class(int level, int residue, const Use &use) const {
        const FastDivmod &modulus = grid_.levels[level];
        unsigned members = 0;
        for (int i = 0; i < grid_.branch_count; ++i) {
            const CellBranch &branch = branches_[i];
            if (!branch.serves)
                continue;
            if (branch.row_dilation <= modulus.value) {
                members |= static_cast<unsigned>(row_divisor(i).remainder(residue) == branch.row_residue) << i;
            } else if (modulus.remainder(branch.row_residue) == residue) { // the class is divided further
                for (int part = residue; part < grid_.levels[level + 1].value; part += modulus.value)
                    for_each_class(level + 1, part, use);
                return;
            }
        }
        use(residue, modulus, members);
    }

    // Adds the time of `tiles` equal tiles. `row_blocks` counts, for each branch, the row blocks of a tile that take
    // part in it. `span` is the number of positions over which the rows of a tile spread.
    void visit_tile(unsigned active, const RowBlockCounts &row_blocks, std::int64_t span, int tiles) {
        std::vector<CellBranch> &branches = tile_branches_;
        branches = branches_;
        for (std::size_t i = 0; i < branches.size(); ++i)
            for (std::size_t j = 0; j < i; ++j)
                if ((active >> i & 1) && (active >> j & 1))
                    branches[i].mark_covered(grid_, static_cast<int>(j), branches[j]);
        double rows = tuning::tile_rows;
        for (std::size_t i = 0; i < branches.size(); ++i) {
            if (!(active >> i & 1))
                continue;
            const CellBranch &branch = branches[i];
            int largest = branch.range_dilation;
            for (std::size_t j = i + 1; j < branches.size(); ++j)
                if (branches[j].ancestors >> i & 1)
                    largest = std::max(largest, branches[j].range_dilation);
            const int splits = splits_of_period(largest / branch.range_dilation);
            const auto visit = [&](int start, int end) {
                std::int64_t met_rows = rows_of(branch, static_cast<int>(i), start, end);
                const GridBranch &own = grid_.branches[i];
                if (own.is_window) // all of its range is counted, unlike the halves that causality leaves
                    met_rows = std::min(met_rows, (grid_.causal ? 2 : 1) * (span + own.before + own.after) /
                                                      branch.range_dilation);
                const std::int64_t blocks = divide_up(met_rows, std::int64_t{splits} * shape_.range_block_rows) *
                                            std::min<std::int64_t>(splits, met_rows);
                const double busy = static_cast<double>(row_blocks[i]) / shape_.row_blocks;
                rows +=
                    static_cast<double>(blocks * shape_.range_block_rows) * (busy + tuning::waiting_cost * (1 - busy));
            };
            visit(branch.start, branch.covered_start);
            if (branch.covered_start < branch.covered_end)
                visit(branch.covered_end, branch.end);
        }
        all_ += rows * tiles;
    }

    const FastDivmod &row_divisor(int branch) const {
        static constexpr FastDivmod one(1);
        return branches_[branch].row_dilation == 1 ? one : grid_.branches[branch].dilation;
    }

    int rows_of(const CellBranch &branch, int index, int start, int end) const {
        const GridBranch &own = grid_.branches[index];
        const int from = std::max({start, sequence_.range_start, own.range_start}),
                  to = std::min({end, sequence_.range_start + sequence_.range_count, own.range_end});
        return from < to ? Members(from, to, branch.range_residue, own.range_dilation).count : 0;
    }
};

} // namespace

double time_of_tiles(const TileGrid &grid, const KernelShape &shape) {
    return TileTime(grid, shape).all_tiles();
}

} // namespace annulus
