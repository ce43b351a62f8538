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

// ---- The positions of messages that no closed form tells: those that are wanted, in order. A block for each kv head
// and piece of the keys; each piece is counted first.

struct PositionsOfMessage {
    const CommonSegment *segments;
    std::int32_t segment_count, heads_per_kv_head;
    Window queries;
    std::int64_t first_key, pieces;
    std::int64_t end_block; // of the launch
    const std::int64_t *prefix;
    std::int64_t *counts, *positions;
};

// Of some messages, for a launch.
struct PositionsToList {
    static constexpr int most = 16;
    int count;
    PositionsOfMessage of_message[most];
};

constexpr int list_threads = 1024;
static_assert(positions_of_count % list_threads == 0);

// A block's part of it.
class PieceOfMessage {
  public:
    __device__ explicit PieceOfMessage(const PositionsToList &all) : message_(all.of_message), block_(blockIdx.x) {
        for (; blockIdx.x >= message_->end_block; ++message_)
            block_ = blockIdx.x - message_->end_block;
    }

    __device__ const PositionsOfMessage &message() const { return *message_; }
    // In counts[].
    __device__ std::int64_t index() const { return block_; }
    __device__ std::int64_t piece() const { return block_ % message_->pieces; }
    __device__ std::int32_t kv_head() const { return static_cast<std::int32_t>(block_ / message_->pieces); }

    // use(position, whether it is wanted) for all positions, by all threads alike.
    template <class Use> __device__ void for_each_position(Use use) const {
        constexpr int most = 32; // branches along lines at a time
        __shared__ WantedKeys along_line[most];
        const PositionsOfMessage &m = *message_;
        const std::int32_t first_head = kv_head() * m.heads_per_kv_head;
        const std::int64_t first = m.first_key + piece() * positions_of_count;
        unsigned wanted = 0; // a bit for each of the thread's positions
        static_assert(positions_of_count / list_threads <= 32);
        for (int from = 0; from < m.segment_count; from += most) {
            const int count = min(most, m.segment_count - from);
            const CommonSegment *const segments = m.segments + from;
            __syncthreads(); // those before have been read
            if (static_cast<int>(threadIdx.x) < count)
                along_line[threadIdx.x] =
                    WantedKeys(segments[threadIdx.x], first_head, m.heads_per_kv_head, m.queries, first);
            __syncthreads();
            for (int i = 0; i < count; ++i) {
                const bool is_linear = segments[i].segment.curve.is_linear();
                for (int j = 0; j < positions_of_count / list_threads; ++j) {
                    const int position = j * list_threads + static_cast<int>(threadIdx.x);
                    const bool is_wanted = is_linear ? along_line[i].has(position)
                                                     : wants(segments + i, 1, first_head, m.heads_per_kv_head,
                                                             m.queries, first + position);
                    wanted |= static_cast<unsigned>(is_wanted) << j;
                }
            }
        }
        for (int j = 0; j < positions_of_count / list_threads; ++j)
            use(first + j * list_threads + threadIdx.x, (wanted >> j & 1) != 0);
    }

  private:
    const PositionsOfMessage *message_;
    std::int64_t block_; // of the message's
};

__global__ void __launch_bounds__(list_threads)
    count_positions_kernel(const ANNULUS_GRID_CONSTANT PositionsToList all) {
    const PieceOfMessage piece(all);
    int count = 0;
    piece.for_each_position([&](std::int64_t, bool is_wanted) { count += __syncthreads_count(is_wanted); });
    if (threadIdx.x == 0)
        piece.message().counts[piece.index()] = count;
}

__global__ void __launch_bounds__(list_threads) list_positions_kernel(const ANNULUS_GRID_CONSTANT PositionsToList all) {
    __shared__ int counts[list_threads / 32];
    __shared__ unsigned long long before; // in the pieces before this one
    if (threadIdx.x == 0)
        before = 0;
    __syncthreads();
    const PieceOfMessage piece(all);
    unsigned long long own = 0;
    for (std::int64_t i = threadIdx.x; i < piece.piece(); i += list_threads)
        own += static_cast<unsigned long long>(piece.message().counts[piece.index() - piece.piece() + i]);
    if (own != 0)
        atomicAdd(&before, own);
    __syncthreads();
    std::int64_t *next = piece.message().positions + piece.message().prefix[piece.kv_head()] + before;
    piece.for_each_position([&](std::int64_t position, bool is_wanted) {
        const BlockRank rank = rank_in_block(is_wanted, counts);
        if (is_wanted)
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
    std::array<RowMove::Ends, 2> of_tensor;
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

// The row's first byte in a tensor.
__device__ std::byte *row_in_tensor(const MoveArguments &a, const RowView &view, std::int64_t row) {
    const std::int64_t batch = row / a.total_rows, i = row % a.total_rows;
    const std::int32_t head = head_of_row(a, i);
    const std::int64_t position =
        a.table.positions ? a.table.positions[i] : a.table.firsts[head] + (i - a.table.prefix[head]) * a.stride;
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

// One thread finds out where a row is, all threads move. A layer of the grid for each tensor.
template <Direction direction, class Unit>
__global__ void __launch_bounds__(block_threads) move_kernel(const ANNULUS_GRID_CONSTANT MoveArguments a) {
    __shared__ std::byte *tensor_rows[move_rows_of_block];
    const RowMove::Ends &ends = a.of_tensor[blockIdx.y];
    auto *const wire = static_cast<std::byte *>(ends.wire);
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * move_rows_of_block;
    const std::int64_t left = a.rows - first;
    const int rows = left < move_rows_of_block ? static_cast<int>(left) : move_rows_of_block;
    if (static_cast<int>(threadIdx.x) < rows)
        tensor_rows[threadIdx.x] = row_in_tensor(a, ends.rows, first + threadIdx.x);
    __syncthreads();
    const int units = a.row_bytes / static_cast<int>(sizeof(Unit));
    for (int i = static_cast<int>(threadIdx.x); i < rows * units; i += block_threads) {
        const int byte = i % units * static_cast<int>(sizeof(Unit));
        move_unit<direction, Unit>(tensor_rows[i / units] + byte, wire + (first + i / units) * a.row_bytes + byte);
    }
}

class CudaRowMover : public MessageCopier {
  public:
    void fill(const std::vector<TableOfMessage> &tables, const Plan &plan, void *on) override {
        cudaStream_t const stream = static_cast<cudaStream_t>(on);
        const Problem &problem = plan.problem();
        ArrayStores stores(stream);
        std::vector<std::int64_t> prefix;
        for (const auto &[message, table] : tables) {
            prefix.assign(message->rows.size() + 1, 0);
            std::partial_sum(message->rows.begin(), message->rows.end(), prefix.begin() + 1);
            stores.add(prefix.data(), prefix.size(), table.prefix);
            if (message->is_regular())
                stores.add(message->firsts.data(), message->firsts.size(), table.firsts);
            else
                stores.add(message->segments.data(), message->segments.size(), segments_of(table));
        }
        stores.launch();
        PositionsToList some{};
        for (const auto &[message, table] : tables) {
            if (message->is_regular())
                continue;
            if (some.count == PositionsToList::most)
                list(some, stream);
            const std::int64_t before = some.count > 0 ? some.of_message[some.count - 1].end_block : 0;
            some.of_message[some.count++] = {segments_of(table),
                                             static_cast<std::int32_t>(message->segments.size()),
                                             problem.heads / problem.kv_heads,
                                             message->queries,
                                             message->keys.start,
                                             message->pieces(),
                                             before + problem.kv_heads * message->pieces(),
                                             table.prefix,
                                             table.counts,
                                             table.positions};
        }
        list(some, stream);
    }

    void pack(const RowMove &move, void *stream) override { run<Direction::pack>(move, stream); }
    void unpack(const RowMove &move, void *stream) override { run<Direction::unpack>(move, stream); }
    void add(const RowMove &move, void *stream) override { run<Direction::add>(move, stream); }

  private:
    static CommonSegment *segments_of(const RowTable &table) {
        return reinterpret_cast<CommonSegment *>(table.segments);
    }

    // And leaves none.
    static void list(PositionsToList &some, cudaStream_t stream) {
        if (some.count == 0)
            return;
        const auto grid = static_cast<unsigned>(some.of_message[some.count - 1].end_block);
        launch_with("count_positions", count_positions_kernel, grid, list_threads, stream, some);
        launch_with("list_positions", list_positions_kernel, grid, list_threads, stream, some);
        some.count = 0;
    }

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
        a.of_tensor = move.of_tensor;
        cudaStream_t const stream = static_cast<cudaStream_t>(on);
        const dim3 grid(grid_for(a.rows, move_rows_of_block).x, static_cast<unsigned>(move.tensors));
        if constexpr (direction == Direction::add)
            launch("add_rows_of_message", move_kernel<direction, float4>, grid, stream, a);
        else if (is_aligned(move))
            launch("move_rows", move_kernel<direction, uint4>, grid, stream, a);
        else
            launch("move_rows", move_kernel<direction, std::uint16_t>, grid, stream, a);
    }

    // Whether every row of the tensors begins at a multiple of 16 bytes; those on the wire do.
    static bool is_aligned(const RowMove &move) {
        return std::all_of(move.of_tensor.begin(), move.of_tensor.begin() + move.tensors, [&](const auto &ends) {
            const RowView &view = ends.rows;
            const std::int64_t strides = (view.batch | view.row | view.head) * dtype_bytes(move.dtype);
            return (reinterpret_cast<std::uintptr_t>(view.data) | static_cast<std::uintptr_t>(strides)) %
                       sizeof(uint4) ==
                   0;
        });
    }
};

} // namespace

std::unique_ptr<MessageCopier> make_cuda_message_copier() {
    return std::make_unique<CudaRowMover>();
}

} // namespace annulus
