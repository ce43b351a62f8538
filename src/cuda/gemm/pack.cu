// SPDX-License-Identifier: Apache-2.0
// Kernels that write items and pointers of tiles, pack rows, and add packed rows to the state.
#include "cuda/device/kernel_common.cuh"
#include "cuda/gemm/kernels.hpp"

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
    item.key_state = (entry * kv_heads + kv_head - a.block.first_head / a.heads_per_kv_head) *
                     divide_up(a.block.keys.length, a.key_stride);
    for (int operand = 0; operand < operand_count; ++operand) {
        const OperandAddress &address = a.operands[static_cast<std::size_t>(operand)];
        if (address.base)
            a.pointers[operand * a.capacity + i] =
                address.base + tile.batch * address.batch + (address.is_key_side ? kv_head : tile.head) * address.head +
                ((address.is_key_side ? key : query) - address.start) / address.stride * address.row +
                i % a.tiles_per_launch * address.slot;
    }
}

constexpr int rows_of_block = 32;

// Copies the rows of a thread block in units of Unit. `offsets` are in elements of the tensor; -1 marks an absent row.
template <class Unit>
__device__ void copy_rows(const void *tensor, const std::int64_t *offsets, int element_bytes, int rows, int row_bytes,
                          void *packed) {
    const int units = row_bytes / static_cast<int>(sizeof(Unit));
    for (int i = static_cast<int>(threadIdx.x); i < rows * units; i += block_threads) {
        const std::int64_t offset = offsets[i / units];
        const char *const row = static_cast<const char *>(tensor) + offset * element_bytes;
        static_cast<Unit *>(packed)[i] = offset < 0 ? Unit{} : reinterpret_cast<const Unit *>(row)[i % units];
    }
}

// One thread finds the address of a row; all threads copy.
template <class T> __global__ void __launch_bounds__(block_threads) pack_kernel(const PackArguments a) {
    __shared__ std::int64_t offsets[2][rows_of_block];
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows_of_block;
    const std::int64_t left = a.tiles * a.count - first;
    const int rows = left < rows_of_block ? static_cast<int>(left) : rows_of_block;
    if (const int i = static_cast<int>(threadIdx.x); i < rows) {
        const std::int64_t row = first + i, row_of_tile = row % a.count;
        const Tile &tile = a.items[row / a.count].tile;
        std::int64_t position = -1;
        if (row_of_tile < a.present) {
            const std::int64_t place = (a.is_key_side ? tile.key : tile.query) + row_of_tile * a.stride;
            position = Segment{{tile.segment_start, a.curve.length()}, a.curve}.position(place);
        }
        const bool present = position >= a.window.start && position < a.window.end();
        const std::int64_t head = a.is_key_side ? tile.head / a.heads_per_kv_head : tile.head;
        a.positions[row] = present ? position : -1;
        for (std::size_t t = 0; t < a.tensors.size(); ++t)
            offsets[t][i] = present ? strided_row_offset(a.tensors[t].source, tile.batch, head, position) : -1;
    }
    __syncthreads();
    const int row_bytes = a.head_dim * static_cast<int>(sizeof(T));
    for (std::size_t t = 0; t < a.tensors.size(); ++t) {
        const PackedTensor &tensor = a.tensors[t];
        if (!tensor.rows)
            continue;
        char *const packed = static_cast<char *>(tensor.rows) + first * row_bytes;
        const DeviceRows &source = tensor.source;
        const std::int64_t strides = (source.batch | source.row | source.head) * static_cast<std::int64_t>(sizeof(T));
        if ((reinterpret_cast<std::uintptr_t>(source.data) | static_cast<std::uintptr_t>(strides)) % sizeof(uint4) == 0)
            copy_rows<uint4>(source.data, offsets[t], sizeof(T), rows, row_bytes, packed);
        else
            copy_rows<T>(source.data, offsets[t], sizeof(T), rows, row_bytes, packed);
    }
}

// Each thread adds four columns.
__global__ void add_kernel(const AddArguments a) {
    // A launch has so few rows (layout.cpp) that 32 bits suffice.
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned fours = static_cast<unsigned>(a.head_dim) / 4; // of a row
    const unsigned row = i / fours;
    if (row >= a.tiles * a.count || a.positions[row] < 0)
        return;
    const TileItem &item = a.items[row / static_cast<unsigned>(a.count)];
    const std::int64_t position = a.positions[row];
    const std::int64_t sum_row =
        a.is_key_side ? item.key_state + (position - a.key_start) / a.key_stride : item.state + position;
    float4 &sum = reinterpret_cast<float4 *>(a.target)[sum_row * fours + i % fours];
    const float4 four = reinterpret_cast<const float4 *>(a.rows)[i];
    if (a.overwrites)
        sum = four;
    else
        sum = {sum.x + four.x, sum.y + four.y, sum.z + four.z, sum.w + four.w};
}

} // namespace

void write_items(const ItemArguments &a, cudaStream_t stream) {
    launch("write_items", write_items_kernel, grid_for(a.count, block_threads), stream, a);
}

void pack_rows(annulus_dtype dtype, const PackArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        launch("pack_rows", pack_kernel<decltype(type)>, grid_for(a.tiles * a.count, rows_of_block), stream, a);
    });
}

void add_rows(const AddArguments &a, cudaStream_t stream) {
    launch("add_rows", add_kernel, grid_for(a.tiles * a.count * (a.head_dim / 4), block_threads), stream, a);
}

} // namespace annulus
