// SPDX-License-Identifier: Apache-2.0
// Kernels that move rows and addresses about: items and pointers of tiles, packing, adding packed rows to the state.
#include "cuda/device.cuh"

#include <algorithm>

namespace annulus {

namespace {

__global__ void write_items_kernel(const ItemArguments a) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= a.count)
        return;
    const Tile tile = tile_at(a.set, a.first + i);
    const std::int64_t kv_head = tile.head / a.heads_per_kv_head;
    const std::int64_t entry = tile.batch - a.block.first_batch;
    const std::int64_t query = tile.segment_start + tile.query, key = tile.segment_start + tile.key;
    const std::int32_t kv_heads = a.block.heads / a.heads_per_kv_head;
    TileItem &item = a.items[i];
    item.tile = tile;
    item.state =
        (entry * a.block.heads + tile.head - a.block.first_head) * a.block.queries.length - a.block.queries.start;
    item.key_state = (entry * kv_heads + kv_head - a.block.first_head / a.heads_per_kv_head) * a.block.keys.length -
                     a.block.keys.start;
    for (int operand = 0; operand < operand_count; ++operand) {
        const OperandAddress &address = a.operands[static_cast<std::size_t>(operand)];
        if (address.base)
            a.pointers[operand * a.capacity + i] =
                address.base + tile.batch * address.batch + (address.of_keys ? kv_head : tile.head) * address.head +
                (address.of_keys ? key : query) * address.position + i % a.per_launch * address.slot;
    }
}

// A warp copies a row.
template <class T> __global__ void pack_kernel(const PackArguments a) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= a.tiles * a.count)
        return;
    const int lane = threadIdx.x % 32;
    const Tile &tile = a.items[row / a.count].tile;
    const auto i = static_cast<std::int32_t>(row % a.count);
    std::int64_t position = -1;
    if (i < a.present) {
        const std::int64_t place = (a.of_keys ? tile.key : tile.query) + i * a.stride;
        position = Segment{{tile.segment_start, a.curve.length()}, a.curve}.position(place);
    }
    const bool present = position >= a.window.start && position < a.window.end();
    const std::int64_t head = a.of_keys ? tile.head / a.heads_per_kv_head : tile.head;
    if (lane == 0)
        a.positions[row] = present ? position : -1;
    for (const PackedTensor &tensor : a.tensors) {
        if (!tensor.rows)
            continue;
        T *const target = static_cast<T *>(tensor.rows) + row * a.head_dim;
        const T *const source = row_at<T>(tensor.source, tile.batch, head, position);
        for (int d = lane; d < a.head_dim; d += 32)
            target[d] = present ? source[d] : from_float<T>(0.f);
    }
}

__global__ void add_kernel(const AddArguments a) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= a.tiles * a.count)
        return;
    const std::int64_t position = a.positions[row];
    if (position < 0)
        return;
    const TileItem &item = a.items[row / a.count];
    float *const target = a.target + ((a.of_keys ? item.key_state : item.state) + position) * a.head_dim;
    const float *const source = a.rows + row * a.head_dim;
    for (int d = threadIdx.x % 32; d < a.head_dim; d += 32)
        target[d] = a.overwrite ? source[d] : target[d] + source[d];
}

__global__ void clear_kernel(float2 *state, std::int64_t rows) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < rows)
        state[i] = {-INFINITY, 0.f};
}

// Few enough for the 4 KiB of a kernel's arguments.
constexpr int branches_at_once = 16;
struct SomeBranches {
    alignas(BranchPlan) std::byte bytes[branches_at_once * sizeof(BranchPlan)];
};
static_assert(std::is_trivially_copyable_v<BranchPlan> && sizeof(SomeBranches) < 4000);

__global__ void store_kernel(const SomeBranches some, std::byte *target, int bytes) {
    for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x))
        target[i] = some.bytes[i];
}

} // namespace

void write_items(const ItemArguments &a, cudaStream_t stream) {
    launch("write_items", write_items_kernel, grid_for(a.count, block_threads), stream, a);
}

void pack_rows(annulus_dtype dtype, const PackArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        launch("pack_rows", pack_kernel<decltype(type)>, grid_for(a.tiles * a.count, block_threads / 32), stream, a);
    });
}

void add_rows(const AddArguments &a, cudaStream_t stream) {
    launch("add_rows", add_kernel, grid_for(a.tiles * a.count, block_threads / 32), stream, a);
}

void clear_state(float2 *state, std::int64_t rows, cudaStream_t stream) {
    launch("clear_state", clear_kernel, grid_for(rows, block_threads), stream, state, rows);
}

void store_branches(const BranchPlan *branches, std::int32_t count, BranchPlan *target, cudaStream_t stream) {
    for (std::int32_t first = 0; first < count; first += branches_at_once) {
        const int bytes = std::min(branches_at_once, count - first) * static_cast<int>(sizeof(BranchPlan));
        SomeBranches some;
        std::copy_n(reinterpret_cast<const std::byte *>(branches + first), bytes, some.bytes);
        launch("store_branches", store_kernel, 1, stream, some, reinterpret_cast<std::byte *>(target + first), bytes);
    }
}

} // namespace annulus
