// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/curve_order.hpp"

#include "core/dtype_number.hpp"
#include "cuda/device/kernel_common.cuh"
#include "cuda/fused/plan/grids.hpp"

#include <cstddef>

namespace annulus {

namespace {

// A segment with its own permutation. All whole segments have the same one.
struct OrderedSegment {
    Segment segment;
    std::int64_t first; // the first of its numbers
};
__host__ __device__ OrderedSegment ordered_segment(const BranchPlan &branch, bool is_whole) {
    return {branch.segment(is_whole ? 0 : branch.segment_count() - 1), is_whole ? 0 : branch.segment_length()};
}

__global__ void __launch_bounds__(block_threads)
    place_kernel(const BranchPlan branch, std::int64_t length, int *order) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    if (i >= length)
        return;
    const OrderedSegment own = ordered_segment(branch, i < branch.segment_length());
    order[i] = static_cast<int>(own.segment.position(i - own.first) - own.segment.range.start);
}

__global__ void __launch_bounds__(block_threads)
    residue_kernel(const BranchPlan branch, std::int64_t length, int *residues) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    if (i >= length)
        return;
    const OrderedSegment own = ordered_segment(branch, i < branch.segment_length());
    residues[i] = static_cast<int>(own.segment.place(own.segment.range.start + i - own.first) % branch.dilation());
}

constexpr int order_threads = 1024;

// Returns how many residues have a place in a segment.
__host__ __device__ std::int64_t residues_with_members(const BranchPlan &branch) {
    return branch.dilation() < branch.segment_length() ? branch.dilation() : branch.segment_length();
}

// Writes the positions of each class one after the other. Grid: a block for each residue and segment.
__global__ void __launch_bounds__(order_threads)
    order_kernel(const BranchPlan branch, const int *residues, int *order) {
    __shared__ int counts[order_threads / 32];
    const int residue = static_cast<int>(blockIdx.x);
    const OrderedSegment own = ordered_segment(branch, blockIdx.y == 0);
    std::int64_t members = 0;
    for (std::int64_t from = 0; from < own.segment.range.length; from += order_threads) {
        const std::int64_t i = from + threadIdx.x;
        const bool is_member = i < own.segment.range.length && residues[own.first + i] == residue;
        const BlockRank rank = rank_in_block(is_member, counts);
        if (is_member)
            order[own.first + residue + (members + rank.before) * branch.dilation()] = static_cast<int>(i);
        members += rank.all;
    }
}

__global__ void __launch_bounds__(block_threads)
    pack_order_kernel(const __grid_constant__ TileGrid grid, const DeviceRows rows, std::int64_t all, int heads,
                      int parts, int element_bytes, uint4 *target) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_threads + threadIdx.x;
    if (i >= all)
        return;
    const SequenceGrid &sequence = grid.sequence;
    const int part = static_cast<int>(i % parts);
    const std::int64_t row = i / parts / heads, head = i / parts % heads;
    const int position = grid.position_of(sequence.range_start + static_cast<int>(row % sequence.range_count));
    const std::int64_t offset =
        row / sequence.range_count * rows.batch + head * rows.head + (position - rows.start) * rows.row;
    const std::byte *const source = static_cast<const std::byte *>(rows.data) + offset * element_bytes;
    target[i] = reinterpret_cast<const uint4 *>(source)[part];
}

} // namespace

void pack_in_order(annulus_dtype dtype, const TileGrid &grid, const DeviceRows &rows, std::int64_t batches,
                   std::int32_t heads, std::int32_t head_dim, void *target, cudaStream_t stream) {
    const int element_bytes = dtype_bytes(dtype), parts = head_dim * element_bytes / static_cast<int>(sizeof(uint4));
    const std::int64_t all = batches * grid.sequence.range_count * heads * parts;
    launch("pack_in_order", pack_order_kernel, grid_for(all, block_threads), stream, grid, rows, all, heads, parts,
           element_bytes, static_cast<uint4 *>(target));
}

void find_curve_order(const BranchPlan &branch, int *residues, int *order, cudaStream_t stream) {
    const std::int64_t length = curve_order_length(branch);
    if (!branch.causal())
        return launch("find_places", place_kernel, grid_for(length, block_threads), stream, branch, length, order);
    launch("find_residues", residue_kernel, grid_for(length, block_threads), stream, branch, length, residues);
    const dim3 classes(static_cast<unsigned>(residues_with_members(branch)), length > branch.segment_length() ? 2 : 1);
    launch_with("find_order", order_kernel, classes, order_threads, stream, branch, residues, order);
}

} // namespace annulus
