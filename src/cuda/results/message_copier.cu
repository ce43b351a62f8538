// SPDX-License-Identifier: Apache-2.0
// Packs the rows of messages between ranks on a GPU, unpacks them and adds them.
#include "core/dtype_number.hpp"
#include "cuda/device/kernel_common.cuh"
#include "cuda/results/device_functions.hpp"
#include "cuda/results/results.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace annulus {

namespace {

// ---- Lists the positions of irregular messages: the wanted positions, in order. The grid has a block for each kv head
// and piece of the keys. A first kernel counts the positions of each piece.

struct PositionsOfMessage {
    const CommonSegment *segments;
    std::int32_t segment_count, heads_per_kv_head;
    Window queries;
    std::int64_t first_key, piece_count;
    std::int64_t end_block; // the block of the launch after the message's last block
    const std::int64_t *prefix;
    std::int64_t *counts, *positions;
};

// The messages of one launch.
struct PositionsToList {
    static constexpr int max_count = 16;
    int count;
    PositionsOfMessage messages[max_count];
};

constexpr int list_threads = 1024, list_words = static_cast<int>(key_piece_length / 32);
static_assert(list_words <= list_threads && key_piece_length % (32 * 32) == 0);

// The piece of a message that a block lists.
class PieceOfMessage {
  public:
    __device__ explicit PieceOfMessage(const PositionsToList &all) : message_(all.messages), block_(blockIdx.x) {
        for (; blockIdx.x >= message_->end_block; ++message_)
            block_ = blockIdx.x - message_->end_block;
    }

    __device__ const PositionsOfMessage &message() const { return *message_; }
    // Index of the piece in counts[].
    __device__ std::int64_t index() const { return block_; }
    __device__ std::int64_t piece() const { return block_ % message_->piece_count; }
    __device__ std::int32_t kv_head() const { return static_cast<std::int32_t>(block_ / message_->piece_count); }
    __device__ std::int64_t first_position() const { return message_->first_key + piece() * key_piece_length; }

    // Sets a bit for each wanted position. All threads of the block must call it.
    __device__ void find_wanted(unsigned (&wanted)[list_words]) const {
        constexpr int max_count = 32; // branches at a time
        __shared__ WantedKeys keys[max_count];
        const PositionsOfMessage &m = *message_;
        const int thread = static_cast<int>(threadIdx.x);
        const std::int32_t first_head = kv_head() * m.heads_per_kv_head;
        if (thread < list_words)
            wanted[thread] = 0;
        for (int from = 0; from < m.segment_count; from += max_count) {
            const int count = min(max_count, m.segment_count - from);
            const CommonSegment *const segments = m.segments + from;
            __syncthreads(); // the previous keys have been read
            if (thread < count)
                keys[thread] =
                    WantedKeys(segments[thread], first_head, m.heads_per_kv_head, m.queries, first_position());
            __syncthreads();
            for (int i = 0; i < count; ++i)
                for_each_wanted(segments[i], keys[i], first_head, m.heads_per_kv_head, m.queries, first_position(),
                                thread, list_threads,
                                [&](std::int64_t key) { atomicOr(&wanted[key / 32], 1u << key % 32); });
        }
        __syncthreads();
    }

  private:
    const PositionsOfMessage *message_;
    std::int64_t block_; // among the message's blocks
};

__global__ void __launch_bounds__(list_threads)
    count_positions_kernel(const ANNULUS_GRID_CONSTANT PositionsToList all) {
    __shared__ unsigned wanted[list_words];
    __shared__ int count;
    if (threadIdx.x == 0)
        count = 0;
    const PieceOfMessage piece(all);
    piece.find_wanted(wanted);
    if (threadIdx.x < list_words)
        atomicAdd(&count, __popc(wanted[threadIdx.x]));
    __syncthreads();
    if (threadIdx.x == 0)
        piece.message().counts[piece.index()] = count;
}

// Counts the bits before each word. Called by one warp, in which each lane has some consecutive words.
__device__ void count_before_words(const unsigned (&words)[list_words], int (&before)[list_words]) {
    constexpr int words_per_lane = list_words / 32;
    const int lane = static_cast<int>(threadIdx.x);
    int own = 0;
    for (int i = 0; i < words_per_lane; ++i)
        own += __popc(words[lane * words_per_lane + i]);
    int sum = own; // in all words up to this lane's last one
    for (int step = 1; step < 32; step *= 2)
        if (const int other = __shfl_up_sync(~0u, sum, step); lane >= step)
            sum += other;
    sum -= own;
    for (int i = 0; i < words_per_lane; ++i) {
        before[lane * words_per_lane + i] = sum;
        sum += __popc(words[lane * words_per_lane + i]);
    }
}

__global__ void __launch_bounds__(list_threads) list_positions_kernel(const ANNULUS_GRID_CONSTANT PositionsToList all) {
    __shared__ unsigned wanted[list_words];
    __shared__ int before_word[list_words];
    __shared__ unsigned long long before; // positions in the pieces before this one
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0)
        before = 0;
    const PieceOfMessage piece(all);
    piece.find_wanted(wanted);
    unsigned long long own = 0;
    for (std::int64_t i = thread; i < piece.piece(); i += list_threads)
        own += static_cast<unsigned long long>(piece.message().counts[piece.index() - piece.piece() + i]);
    if (own != 0)
        atomicAdd(&before, own);
    if (thread < 32)
        count_before_words(wanted, before_word);
    __syncthreads();
    std::int64_t *const positions = piece.message().positions + piece.message().prefix[piece.kv_head()] + before;
    const std::int64_t first = piece.first_position();
    for (int i = thread; i < key_piece_length; i += list_threads) {
        const unsigned word = wanted[i / 32], bit = 1u << i % 32;
        if (word & bit)
            positions[before_word[i / 32] + __popc(word & (bit - 1))] = first + i;
    }
}

// ---- Moves rows. Each thread moves 16 bytes at a time.

enum class Direction { pack, unpack, add };

struct MoveArguments {
    RowTable table;
    std::int32_t kv_heads;
    std::int64_t total_rows, stride; // of a batch entry; of a regular message
    std::int64_t rows;               // of all batch entries
    std::int32_t row_bytes, element_bytes;
    std::array<RowMove::Ends, 2> tensor_ends;
    DeviceSummedRows summed; // the rows that both tensors have
};

// Returns the kv head to which row i of a batch entry belongs.
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

// Returns the address of the row in a tensor.
__device__ std::byte *row_in_tensor(const MoveArguments &a, const RowView &view, std::int64_t row) {
    const std::int64_t batch = row / a.total_rows, i = row % a.total_rows;
    const std::int32_t head = head_of_row(a, i);
    const std::int64_t position =
        a.table.positions ? a.table.positions[i] : a.table.firsts[head] + (i - a.table.prefix[head]) * a.stride;
    const std::int64_t row_of_head =
        a.summed.are_few ? a.summed.row(head, static_cast<int>(position)) : (position - view.start) / view.stride;
    const std::int64_t offset = batch * view.batch + head * view.head + row_of_head * view.row;
    return static_cast<std::byte *>(view.data) + offset * a.element_bytes;
}

constexpr int move_rows_of_block = 128, units_at_once = 4;

// One thread finds the address of a row; all threads move. A thread reads some units before it writes any, so that it
// waits for memory once. Each tensor has a layer of the grid.
template <Direction direction, class Unit>
__global__ void __launch_bounds__(block_threads) move_kernel(const ANNULUS_GRID_CONSTANT MoveArguments a) {
    __shared__ std::byte *tensor_rows[move_rows_of_block];
    const RowMove::Ends &ends = a.tensor_ends[blockIdx.y];
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * move_rows_of_block;
    Unit *const wire = reinterpret_cast<Unit *>(static_cast<std::byte *>(ends.wire) + first * a.row_bytes);
    const std::int64_t left = a.rows - first;
    const int rows = left < move_rows_of_block ? static_cast<int>(left) : move_rows_of_block;
    for (int row = static_cast<int>(threadIdx.x); row < rows; row += block_threads)
        tensor_rows[row] = row_in_tensor(a, ends.rows, first + row);
    __syncthreads();
    const int units_of_row = a.row_bytes / static_cast<int>(sizeof(Unit)), units = rows * units_of_row;
    const auto in_tensor = [&](int i) -> Unit & {
        return reinterpret_cast<Unit *>(tensor_rows[i / units_of_row])[i % units_of_row];
    };
    for (int from = static_cast<int>(threadIdx.x); from < units; from += units_at_once * block_threads) {
        Unit moved[units_at_once];
#pragma unroll
        for (int j = 0; j < units_at_once; ++j)
            if (const int i = from + j * block_threads; i < units) {
                moved[j] = direction == Direction::pack ? in_tensor(i) : wire[i];
                if constexpr (direction == Direction::add) {
                    const Unit &sum = in_tensor(i);
                    moved[j] = {sum.x + moved[j].x, sum.y + moved[j].y, sum.z + moved[j].z, sum.w + moved[j].w};
                }
            }
#pragma unroll
        for (int j = 0; j < units_at_once; ++j)
            if (const int i = from + j * block_threads; i < units)
                (direction == Direction::pack ? wire[i] : in_tensor(i)) = moved[j];
    }
}

class CudaRowMover : public MessageCopier {
  public:
    void fill(const std::vector<MessageTable> &tables, const Plan &plan, void *on) override {
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
        PositionsToList pending{};
        for (const auto &[message, table] : tables) {
            if (message->is_regular())
                continue;
            if (pending.count == PositionsToList::max_count)
                list(pending, stream);
            const std::int64_t before = pending.count > 0 ? pending.messages[pending.count - 1].end_block : 0;
            pending.messages[pending.count++] = {segments_of(table),
                                                 static_cast<std::int32_t>(message->segments.size()),
                                                 problem.heads / problem.kv_heads,
                                                 message->queries,
                                                 message->keys.start,
                                                 message->piece_count(),
                                                 before + problem.kv_heads * message->piece_count(),
                                                 table.prefix,
                                                 table.counts,
                                                 table.positions};
        }
        list(pending, stream);
    }

    void pack(const RowMove &move, void *stream) override { run<Direction::pack>(move, stream); }
    void unpack(const RowMove &move, void *stream) override { run<Direction::unpack>(move, stream); }
    void add(const RowMove &move, void *stream) override { run<Direction::add>(move, stream); }

  private:
    static CommonSegment *segments_of(const RowTable &table) {
        return reinterpret_cast<CommonSegment *>(table.segments);
    }

    // Launches the kernels for the pending messages, and empties the list.
    static void list(PositionsToList &pending, cudaStream_t stream) {
        if (pending.count == 0)
            return;
        const auto grid = static_cast<unsigned>(pending.messages[pending.count - 1].end_block);
        launch_with("count_positions", count_positions_kernel, grid, list_threads, stream, pending);
        launch_with("list_positions", list_positions_kernel, grid, list_threads, stream, pending);
        pending.count = 0;
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
        a.tensor_ends = move.tensor_ends;
        a.summed = DeviceSummedRows(move.tensor_ends.front().rows.summed);
        cudaStream_t const stream = static_cast<cudaStream_t>(on);
        const dim3 grid(grid_for(a.rows, move_rows_of_block).x, static_cast<unsigned>(move.tensors));
        if constexpr (direction == Direction::add)
            launch("add_rows_of_message", move_kernel<direction, float4>, grid, stream, a);
        else if (is_aligned(move))
            launch("move_rows", move_kernel<direction, uint4>, grid, stream, a);
        else
            launch("move_rows", move_kernel<direction, std::uint16_t>, grid, stream, a);
    }

    // True if every row of the tensors begins at a multiple of 16 bytes. Rows in messages always do.
    static bool is_aligned(const RowMove &move) {
        return std::all_of(move.tensor_ends.begin(), move.tensor_ends.begin() + move.tensors, [&](const auto &ends) {
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
