// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/curve_order.hpp"

#include "cuda/device/kernel_common.cuh"

namespace annulus {

namespace {

__global__ void residue_kernel(const BranchPlan branch, const Window window, int *residues) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= window.length)
        return;
    const std::int64_t position = window.start + i;
    const Segment segment = branch.segment(branch.segment_of(position));
    residues[i] = static_cast<int>(segment.place(position) % branch.dilation());
}

constexpr int order_threads = 1024;

// Residues from there on have no place in a segment.
__host__ __device__ std::int64_t residues_with_members(const BranchPlan &branch) {
    return branch.dilation() < branch.segment_length() ? branch.dilation() : branch.segment_length();
}

// A block for each residue and segment: the positions of the class one after the other.
__global__ void __launch_bounds__(order_threads)
    order_kernel(const BranchPlan branch, const Window window, const int *residues, int *order) {
    __shared__ int counts[order_threads / 32];
    const auto residues_of_segment = static_cast<unsigned>(residues_with_members(branch));
    const int residue = static_cast<int>(blockIdx.x % residues_of_segment);
    const std::int64_t index = blockIdx.x / residues_of_segment;
    const Window range = branch.segment(branch.segment_of(window.start) + index).range;
    const std::int64_t first = range.start - window.start;
    std::int64_t members = 0;
    for (std::int64_t from = 0; from < range.length; from += order_threads) {
        const std::int64_t i = from + threadIdx.x;
        const bool is_member = i < range.length && residues[first + i] == residue;
        const BlockRank rank = rank_in_block(is_member, counts);
        if (is_member)
            order[first + residue + (members + rank.before) * branch.dilation()] = static_cast<int>(first + i);
        members += rank.all;
    }
}

__global__ void pack_order_kernel(const DeviceRows rows, std::int64_t first, std::int64_t length, const int *order,
                                  std::int64_t all, int heads, int parts, uint4 *target) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= all)
        return;
    const int part = static_cast<int>(i % parts);
    const std::int64_t row = i / parts / heads, head = i / parts % heads;
    const std::int64_t offset = row / length * rows.batch + head * rows.head + (first + order[row % length]) * rows.row;
    target[i] = reinterpret_cast<const uint4 *>(static_cast<const __half *>(rows.data) + offset)[part];
}

} // namespace

void find_curve_order(const BranchPlan &branch, const Window &window, int *residues, int *order, cudaStream_t stream) {
    const std::int64_t segments = branch.segment_of(window.end() - 1) - branch.segment_of(window.start) + 1;
    launch("find_residues", residue_kernel, grid_for(window.length, block_threads), stream, branch, window, residues);
    launch_with("find_order", order_kernel, static_cast<unsigned>(segments * residues_with_members(branch)),
                order_threads, stream, branch, window, residues, order);
}

void pack_in_order(const DeviceRows &rows, const Window &window, const int *order, std::int64_t batches,
                   std::int32_t heads, std::int32_t head_dim, void *target, cudaStream_t stream) {
    const int parts = head_dim / 8;
    const std::int64_t all = batches * window.length * heads * parts;
    launch("pack_in_order", pack_order_kernel, grid_for(all, block_threads), stream, rows, window.start - rows.start,
           window.length, order, all, heads, parts, static_cast<uint4 *>(target));
}

} // namespace annulus
