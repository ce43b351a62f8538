// SPDX-License-Identifier: Apache-2.0
// The rows of messages between ranks on a GPU.
#include "core/dtype_number.hpp"
#include "cuda/device/kernel_common.cuh"
#include "cuda/results/results.hpp"
#include "ranks/message_copier.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace annulus {

namespace {

// ---- Numbers that the host knows, carried in kernel arguments: a captured graph keeps them.

constexpr int carried_bytes = 3072;
struct Carried {
    alignas(std::int64_t) std::byte bytes[carried_bytes];
};

__global__ void store_carried_kernel(const Carried carried, std::byte *target, int bytes) {
    for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x))
        target[i] = carried.bytes[i];
}

void store_numbers(const std::vector<std::int64_t> &numbers, std::int64_t *target, cudaStream_t stream) {
    const auto *const source = reinterpret_cast<const std::byte *>(numbers.data());
    const auto bytes = static_cast<std::int64_t>(numbers.size() * sizeof(std::int64_t));
    for (std::int64_t from = 0; from < bytes; from += carried_bytes) {
        const int count = static_cast<int>(std::min<std::int64_t>(carried_bytes, bytes - from));
        Carried carried;
        std::copy_n(source + from, count, carried.bytes);
        launch("store_numbers", store_carried_kernel, 1, stream, carried, reinterpret_cast<std::byte *>(target) + from,
               count);
    }
}

// ---- The positions of a message that no closed form tells: those that are wanted, in order. A block for each kv head
// and piece of the keys; each counts its own first.

struct ListArguments {
    const CommonSegment *segments;
    std::int32_t segment_count, heads_per_kv_head;
    Window queries, keys;
    const std::int64_t *prefix;
    std::int64_t *counts, *positions;
    std::int64_t pieces;

    __device__ bool is_wanted(std::int64_t position) const {
        return position < keys.end() &&
               wants(segments, segment_count, kv_head() * heads_per_kv_head, heads_per_kv_head, queries, position);
    }
    __device__ std::int32_t kv_head() const { return static_cast<std::int32_t>(blockIdx.x / pieces); }
    __device__ std::int64_t piece() const { return blockIdx.x % pieces; }
    // use(position) for those of the block's piece, by all threads alike.
    template <class Use> __device__ void for_each_position(Use use) const {
        const std::int64_t start = keys.start + piece() * positions_of_count;
        for (std::int64_t from = start; from < start + positions_of_count; from += blockDim.x)
            use(from + threadIdx.x);
    }
};

constexpr int list_threads = 1024;
static_assert(positions_of_count % list_threads == 0);

__global__ void __launch_bounds__(list_threads) count_positions_kernel(const ListArguments a) {
    int count = 0;
    a.for_each_position([&](std::int64_t position) { count += __syncthreads_count(a.is_wanted(position)); });
    if (threadIdx.x == 0)
        a.counts[blockIdx.x] = count;
}

__global__ void __launch_bounds__(list_threads) list_positions_kernel(const ListArguments a) {
    __shared__ int counts[list_threads / 32];
    __shared__ unsigned long long before; // in the pieces before this one
    if (threadIdx.x == 0)
        before = 0;
    __syncthreads();
    unsigned long long own = 0;
    const std::int64_t piece = a.piece();
    for (std::int64_t i = threadIdx.x; i < piece; i += list_threads)
        own += static_cast<unsigned long long>(a.counts[blockIdx.x - piece + i]);
    if (own != 0)
        atomicAdd(&before, own);
    __syncthreads();
    std::int64_t *next = a.positions + a.prefix[a.kv_head()] + before;
    a.for_each_position([&](std::int64_t position) {
        const bool wanted = a.is_wanted(position);
        const BlockRank rank = rank_in_block(wanted, counts);
        if (wanted)
            next[rank.before] = position;
        next += rank.all;
    });
}

// ---- Rows, 16 bytes a thread.

enum class Direction { pack, unpack, add };

struct MoveArguments {
    RowTable table;
    std::int32_t kv_heads;
    std::int64_t total_rows, stride; // of a batch entry; of a regular message
    std::int64_t rows;               // of all batch entries
    std::int32_t row_bytes, element_bytes;
    RowView view;
    std::byte *wire;
};

// The kv head that row i of a batch entry belongs to.
__device__ std::int32_t head_of_row(const MoveArguments &a, std::int64_t i) {
    std::int32_t low = 0, high = a.kv_heads - 1;
    while (low < high) {
        const std::int32_t middle = (low + high + 1) / 2;
        if (a.table.prefix[middle] <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// The row's first byte in the tensor.
__device__ std::byte *row_in_tensor(const MoveArguments &a, std::int64_t row) {
    const std::int64_t batch = row / a.total_rows, i = row % a.total_rows;
    const std::int32_t head = head_of_row(a, i);
    const std::int64_t position =
        a.table.positions ? a.table.positions[i] : a.table.firsts[head] + (i - a.table.prefix[head]) * a.stride;
    const RowView &view = a.view;
    const std::int64_t offset =
        batch * view.batch + head * view.head + (position - view.start) / view.stride * view.row;
    return static_cast<std::byte *>(view.data) + offset * a.element_bytes;
}

template <Direction direction, class Unit> __device__ void move_unit(std::byte *in_tensor, std::byte *on_wire) {
    Unit &tensor = *reinterpret_cast<Unit *>(in_tensor), &wire = *reinterpret_cast<Unit *>(on_wire);
    if constexpr (direction == Direction::pack)
        wire = tensor;
    else if constexpr (direction == Direction::unpack)
        tensor = wire;
    else
        tensor = {tensor.x + wire.x, tensor.y + wire.y, tensor.z + wire.z, tensor.w + wire.w};
}

constexpr int move_rows_of_block = 32;

// One thread finds out where a row is, all threads move.
template <Direction direction, class Unit>
__global__ void __launch_bounds__(block_threads) move_kernel(const MoveArguments a) {
    __shared__ std::byte *tensor_rows[move_rows_of_block];
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * move_rows_of_block;
    const std::int64_t left = a.rows - first;
    const int rows = left < move_rows_of_block ? static_cast<int>(left) : move_rows_of_block;
    if (static_cast<int>(threadIdx.x) < rows)
        tensor_rows[threadIdx.x] = row_in_tensor(a, first + threadIdx.x);
    __syncthreads();
    const int units = a.row_bytes / static_cast<int>(sizeof(Unit));
    for (int i = static_cast<int>(threadIdx.x); i < rows * units; i += block_threads) {
        const int byte = i % units * static_cast<int>(sizeof(Unit));
        move_unit<direction, Unit>(tensor_rows[i / units] + byte, a.wire + (first + i / units) * a.row_bytes + byte);
    }
}

class CudaRowMover : public MessageCopier {
  public:
    void fill(const RowTable &table, const Plan &plan, const Message &message, void *on) override {
        cudaStream_t const stream = static_cast<cudaStream_t>(on);
        std::vector<std::int64_t> prefix(message.rows.size() + 1);
        std::partial_sum(message.rows.begin(), message.rows.end(), prefix.begin() + 1);
        store_numbers(prefix, table.prefix, stream);
        if (message.is_regular()) {
            store_numbers(message.firsts, table.firsts, stream);
            return;
        }
        const Problem &problem = plan.problem();
        auto *const segments = reinterpret_cast<CommonSegment *>(table.segments);
        store_array(message.segments.data(), message.segments.size(), segments, stream);
        const ListArguments a{segments,
                              static_cast<std::int32_t>(message.segments.size()),
                              problem.heads / problem.kv_heads,
                              message.queries,
                              message.keys,
                              table.prefix,
                              table.counts,
                              table.positions,
                              message.pieces()};
        const auto grid = static_cast<unsigned>(problem.kv_heads * message.pieces());
        launch_with("count_positions", count_positions_kernel, grid, list_threads, stream, a);
        launch_with("list_positions", list_positions_kernel, grid, list_threads, stream, a);
    }

    void pack(const RowMove &move, void *stream) override { run<Direction::pack>(move, stream); }
    void unpack(const RowMove &move, void *stream) override { run<Direction::unpack>(move, stream); }
    void add(const RowMove &move, void *stream) override { run<Direction::add>(move, stream); }

  private:
    template <Direction direction> static void run(const RowMove &move, void *on) {
        const Message &message = *move.message;
        MoveArguments a{};
        a.table = move.table;
        a.kv_heads = static_cast<std::int32_t>(message.rows.size());
        a.total_rows = message.total_rows();
        a.stride = message.stride;
        a.rows = move.batches * a.total_rows;
        a.element_bytes = dtype_bytes(move.dtype);
        a.row_bytes = move.head_dim * a.element_bytes;
        a.view = move.rows;
        a.wire = static_cast<std::byte *>(move.wire);
        cudaStream_t const stream = static_cast<cudaStream_t>(on);
        const dim3 grid = grid_for(a.rows, move_rows_of_block);
        if constexpr (direction == Direction::add)
            launch("add_rows_of_message", move_kernel<direction, float4>, grid, stream, a);
        else if (is_aligned(a))
            launch("move_rows", move_kernel<direction, uint4>, grid, stream, a);
        else
            launch("move_rows", move_kernel<direction, std::uint16_t>, grid, stream, a);
    }

    // Whether every row of the tensor begins at a multiple of 16 bytes; those on the wire do.
    static bool is_aligned(const MoveArguments &a) {
        const std::int64_t strides = (a.view.batch | a.view.row | a.view.head) * a.element_bytes;
        return (reinterpret_cast<std::uintptr_t>(a.view.data) | static_cast<std::uintptr_t>(strides)) % sizeof(uint4) ==
               0;
    }
};

} // namespace

std::unique_ptr<MessageCopier> make_cuda_message_copier() {
    return std::make_unique<CudaRowMover>();
}

} // namespace annulus
