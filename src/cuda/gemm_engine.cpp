// SPDX-License-Identifier: Apache-2.0
// The `gemm` engine: attention as batched matrix products on the caller's tensors, on any NVIDIA GPU.
//
// The keys of a dilated class are rows n0, n0 + r, n0 + 2r, … of the caller's own tensor, so a class is a matrix whose
// row pitch is r times the tensor's: nothing is gathered. Forward, for each launch of equal tiles:
//
//     S = scale log2(e) Q K^T        product
//     m, l, P, O = softmax(S)        kernel, in place: P overwrites S, O is rescaled (scores.cu)
//     O += P V                       product
//
// and O / l at the end of a block. Backward:
//
//     S = scale log2(e) Q K^T,  T = dO V^T
//     P = 2^(S - LSE log2(e)),  dS = scale P (T - delta)
//     dV += P^T dO,  dK += dS^T Q,  dQ += dS K
//
// O and the gradients of a block are summed in float32 in the workspace. Tiles whose rows are no matrix (an order along
// a curve, strides or addresses that cuBLAS does not take) are packed first and their products added row by row.
//
// Blocks (gemm_layout.hpp) are independent. Two lanes, each a stream with a block of its own, keep the GPU busy while
// one of them starts or drains a kernel.
#include "core/dtype_number.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/gemm_layout.hpp"
#include "cuda/gemm_product.hpp"
#include "cuda/kernels.hpp"
#include "engine/engine.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

namespace {

constexpr std::uint64_t default_workspace = std::uint64_t{256} << 20;
constexpr double log2_e = 1.4426950408889634;

DeviceRows rows_of(const annulus_tensor &tensor, std::int64_t start) {
    return {tensor.data, tensor.stride[0], tensor.stride[1], tensor.stride[2], start};
}

DeviceRows statistic_of(const annulus_tensor *tensor, std::int64_t start) {
    if (!tensor)
        return {};
    return {tensor->data, tensor->stride[0], tensor->stride[2], tensor->stride[1], start};
}

// Whether every row set of the tensor is a matrix to cuBLAS: 16-byte rows that do not overlap.
bool is_matrix(const annulus_tensor &tensor) {
    const std::int64_t unit = 16 / dtype_bytes(tensor.dtype);
    const auto fits = [&](int i) { return tensor.shape[i] == 1 || tensor.stride[i] % unit == 0; };
    return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && fits(0) && fits(1) && fits(2) &&
           (tensor.shape[1] == 1 || tensor.stride[1] >= tensor.shape[3]);
}

// What the two passes have in common: the caller's tensors, as far as there are.
struct Call {
    const Plan &plan;
    annulus_pass pass;
    const Resources &resources;
    CudaDevice &device;
    bool matrices = false;        // all inputs are matrices to cuBLAS
    bool output_matrices = false; // all outputs are
    DeviceRows q, k, v, out, lse;
    DeviceRows d_out, d_lse, d_q, d_k, d_v; // backward

    Call(const Plan &of_plan, annulus_pass of_pass, const Resources &given)
        : plan(of_plan), pass(of_pass), resources(given), device(static_cast<CudaDevice &>(*given.device)) {}
};

// The memory of a lane.
struct LaneMemory {
    float2 *state;    // [query_rows], forward
    float *o;         // [query_rows, D]: O, or dQ
    float *d_k, *d_v; // [key_rows, D]
    TileItem *items;  // [tiles]
    void **pointers;  // [operand_count, tiles]
    int *not_finite;  // causal; see RowContext
    std::byte *scores;
    std::byte *blas;
};

struct Memory {
    BranchPlan *branches; // causal
    LaneMemory lanes[CudaDevice::lanes];
};

Memory book(Workspace &workspace, const Plan &plan, annulus_pass pass, const GemmLayout &layout) {
    const std::int64_t d = plan.problem().head_dim;
    const auto bytes = [&](std::size_t count) { return workspace.take<std::byte>(static_cast<std::int64_t>(count)); };
    Memory memory{};
    if (plan.causal())
        memory.branches = reinterpret_cast<BranchPlan *>(bytes(plan.branches().size() * sizeof(BranchPlan)));
    for (int i = 0; i < layout.lanes; ++i) {
        LaneMemory &lane = memory.lanes[i];
        if (!layout.direct) {
            if (pass == ANNULUS_PASS_FORWARD)
                lane.state = workspace.take<float2>(layout.query_rows);
            // Blocks of queries and blocks of keys follow one another.
            const std::int64_t o = layout.query_rows * d, d_kv = layout.key_rows * d;
            const bool apart = layout.grids.size() > 1;
            lane.o = workspace.take<float>(apart ? std::max(o, 2 * d_kv) : o + 2 * d_kv);
            lane.d_k = lane.o + (apart ? 0 : o);
            lane.d_v = lane.d_k + d_kv;
        }
        lane.items = workspace.take<TileItem>(layout.tiles);
        lane.pointers = workspace.take<void *>(operand_count * layout.tiles);
        if (plan.causal())
            lane.not_finite = workspace.take<int>(1);
        lane.scores = bytes(layout.score_bytes);
        lane.blas = bytes(layout.blas_bytes);
    }
    return memory;
}

// Works through its blocks, launch by launch, on the stream of its lane.
class Lane {
  public:
    Lane(const Call &call, const GemmLayout &layout, const Memory &memory, int index)
        : call_(call), layout_(layout), branches_(memory.branches), memory_(memory.lanes[index]), index_(index),
          stream_(call.device.stream(index)), product_{call.device.blas(index), call.plan.problem().dtype,
                                                       call.resources.allow_tf32},
          forward_(call.pass == ANNULUS_PASS_FORWARD), d_(call.plan.problem().head_dim),
          element_(dtype_bytes(call.plan.problem().dtype)) {
        check(cublasSetStream(product_.handle, stream_), "cublasSetStream");
        // Sums stay float32 where a product is split.
        check(cublasSetMathMode(
                  product_.handle,
                  static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
              "cublasSetMathMode");
        check(cublasSetWorkspace(product_.handle, memory_.blas, layout.blas_bytes), "cublasSetWorkspace");
    }

    // The blocks of a grid that are this lane's.
    void start(const BlockGrid &grid) {
        grid_ = &grid;
        next_block_ = index_;
        in_block_ = false;
    }

    // Launches what comes next; false when nothing is left.
    bool step() {
        if (!in_block_) {
            if (next_block_ >= grid_->count())
                return false;
            begin_block();
            return true;
        }
        while (true) {
            if (next_tile_ < set_count()) {
                launch();
                return true;
            }
            if (next_set_ < sets_.size()) {
                begin_set();
                continue;
            }
            if (next_call_ == calls_.size()) {
                finish_block();
                return true;
            }
            next_part();
        }
    }

  private:
    // One enumeration of tiles: a branch, and heads whose keys may be worked on side by side.
    struct SetsOf {
        const BranchPlan *branch;
        std::int32_t first_head, heads;
    };

    void next_part() {
        const SetsOf &sets = calls_[next_call_++];
        Block part = block_;
        part.first_head = sets.first_head;
        part.heads = sets.heads;
        sets_ = make_tiles(call_.plan, *sets.branch, part, layout_.tile);
        next_set_ = 0;
        set_.reset();
    }

    std::int64_t set_count() const { return set_ ? set_->count() : 0; }
    std::int32_t group() const { return call_.plan.problem().heads / call_.plan.problem().kv_heads; }

    void begin_block() {
        block_ = grid_->block(call_.plan, next_block_);
        next_block_ += layout_.lanes;
        in_block_ = true;
        calls_.clear();
        sets_.clear();
        next_call_ = next_set_ = 0;
        set_.reset();
        next_tile_ = 0;
        // Backward, heads of one group add to the same rows of dK and dV: one after the other.
        const std::int32_t heads = forward_ || group() == 1 ? block_.heads : 1;
        for (const BranchPlan &branch : call_.plan.branches())
            for (std::int32_t h = 0; h < block_.heads; h += heads)
                calls_.push_back({&branch, block_.first_head + h, heads});

        if (layout_.direct) {
            clear_unreached_rows();
            return;
        }
        const std::int64_t query_rows = block_.batches * block_.heads * block_.queries.length;
        const std::int64_t key_rows = block_.batches * (block_.heads / group()) * block_.keys.length;
        if (memory_.not_finite)
            check(cudaMemsetAsync(memory_.not_finite, 0, sizeof(int), stream_), "cudaMemsetAsync");
        if (forward_) {
            if (query_rows > 0)
                clear_state(memory_.state, query_rows, stream_);
            return;
        }
        fresh_gradients_ = grid_->query_results && grid_->key_results && first_branch_reaches_all_rows();
        if (fresh_gradients_)
            return;
        const auto clear = [&](float *gradient, std::int64_t rows) {
            check(cudaMemsetAsync(gradient, 0, static_cast<std::size_t>(rows * d_) * sizeof(float), stream_),
                  "cudaMemsetAsync");
        };
        if (grid_->query_results)
            clear(memory_.o, query_rows);
        if (grid_->key_results) {
            clear(memory_.d_k, key_rows);
            clear(memory_.d_v, key_rows);
        }
    }

    // Without a state: no tile writes the rows that the only branch does not reach. Telling them apart costs more than
    // clearing all.
    void clear_unreached_rows() const {
        const BranchPlan &branch = call_.plan.branches().front();
        if (branch.dilation() == 1 && branch.head_count() == call_.plan.problem().heads)
            return;
        const auto clear = [&](const DeviceRows &rows, const DeviceRows &lse) {
            clear_outputs(call_.plan.problem().dtype, {block_, d_, rows, lse}, stream_);
        };
        if (forward_)
            return clear(call_.out, call_.lse);
        clear(call_.d_q, {});
        clear(call_.d_k, {});
        clear(call_.d_v, {});
    }

    // Classes of the branch are single tiles.
    bool has_single_tiles(const BranchPlan &branch) const {
        return divide_up(branch.segment_length(), branch.dilation()) <= layout_.tile;
    }

    // Backward: whether each row of the block's gradients is first reached by one tile of the first branch, which then
    // may overwrite it.
    bool first_branch_reaches_all_rows() const {
        const BranchPlan &branch = call_.plan.branches().front();
        return has_single_tiles(branch) && group() == 1 && block_.queries == block_.keys && branch.dilation() == 1 &&
               branch.serves(block_.first_head) && branch.serves(block_.first_head + block_.heads - 1);
    }

    // Whether the tile's queries have no state yet and meet all their keys of the first branch here: the product
    // overwrites O.
    bool is_fresh() const {
        return next_call_ == 1 && !packed_ && set_->keys > 0 && has_single_tiles(call_.plan.branches().front());
    }

    void begin_set() {
        set_ = sets_[next_set_++];
        next_tile_ = 0;
        items_end_ = 0;
        present_queries_ = set_->queries;
        present_keys_ = set_->keys;
        packed_ = !call_.matrices || needs_packing(*set_);
        if (packed_) {
            set_->queries = static_cast<std::int32_t>(score_pitch(set_->queries));
            set_->keys = static_cast<std::int32_t>(score_pitch(set_->keys));
            set_->absent_rows = set_->absent_rows || set_->queries != present_queries_ || set_->keys != present_keys_;
        }
        const std::int64_t bytes = tile_bytes(call_.plan.problem(), call_.pass, set_->queries, set_->keys, packed_);
        tiles_at_once_ =
            std::clamp<std::int64_t>(static_cast<std::int64_t>(layout_.score_bytes) / std::max<std::int64_t>(1, bytes),
                                     1, std::min(layout_.tiles, set_->count()));
    }

    // The part of a launch's score memory that a packed matrix of the launch takes, in the order of take().
    template <class T> T *take(std::size_t &used, std::int64_t elements) const {
        T *const memory = reinterpret_cast<T *>(memory_.scores + used);
        used += static_cast<std::size_t>(elements) * sizeof(T);
        return memory;
    }

    // Matrices of the launch at hand.
    struct Buffers {
        float *scores, *d_scores;
        std::byte *q, *d_out, *k, *v;
        float *o, *d_k, *d_v; // products of packed tiles
        std::int64_t *query_positions, *key_positions;
    };

    // Widest elements first: all stay aligned, as every row is a multiple of 8 elements or floats.
    Buffers buffers() const {
        const std::int64_t queries = tiles_at_once_ * set_->queries, keys = tiles_at_once_ * set_->keys;
        const std::int64_t scores = queries * pitch();
        std::size_t used = 0;
        Buffers b{};
        b.scores = take<float>(used, scores);
        if (!forward_)
            b.d_scores = take<float>(used, scores);
        if (!packed_)
            return b;
        b.o = take<float>(used, queries * d_);
        if (!forward_) {
            b.d_k = take<float>(used, keys * d_);
            b.d_v = take<float>(used, keys * d_);
        }
        b.q = take<std::byte>(used, queries * d_ * element_);
        b.k = take<std::byte>(used, keys * d_ * element_);
        b.v = take<std::byte>(used, keys * d_ * element_);
        if (!forward_)
            b.d_out = take<std::byte>(used, queries * d_ * element_);
        b.query_positions = take<std::int64_t>(used, queries);
        b.key_positions = take<std::int64_t>(used, keys);
        return b;
    }

    std::int64_t pitch() const { return score_pitch(set_->keys); }

    OperandAddress caller_rows(const DeviceRows &rows, bool of_keys) const {
        char *const base = static_cast<char *>(rows.data) - rows.start * rows.row * element_;
        return {base, rows.batch * element_, rows.head * element_, rows.row * element_, 0, of_keys};
    }
    // Rows of the block's own float32 sums.
    OperandAddress block_rows(float *sums, bool of_keys) const {
        const Window &window = of_keys ? block_.keys : block_.queries;
        const std::int64_t heads = of_keys ? block_.heads / group() : block_.heads;
        const std::int64_t first_head = of_keys ? block_.first_head / group() : block_.first_head;
        const std::int64_t row = d_ * 4, head = row * window.length, batch = head * heads;
        char *const base =
            reinterpret_cast<char *>(sums) - window.start * row - first_head * head - block_.first_batch * batch;
        return {base, batch, head, row, 0, of_keys};
    }
    static OperandAddress slots(void *base, std::int64_t bytes, bool of_keys) {
        return {static_cast<char *>(base), 0, 0, 0, bytes, of_keys};
    }

    void write_items_from(std::int64_t first, const Buffers &b) {
        ItemArguments a{};
        a.set = *set_;
        a.first = first;
        // Whole launches, as many as there is room for.
        a.count = std::min(set_->count() - first, layout_.tiles / tiles_at_once_ * tiles_at_once_);
        a.per_launch = tiles_at_once_;
        a.heads_per_kv_head = group();
        a.first_batch = block_.first_batch;
        a.first_head = block_.first_head;
        a.heads = block_.heads;
        a.queries = block_.queries;
        a.keys = block_.keys;
        a.items = memory_.items;
        a.pointers = memory_.pointers;
        a.capacity = layout_.tiles;
        const std::int64_t query_bytes = set_->queries * d_, key_bytes = set_->keys * d_;
        const std::int64_t score_bytes = set_->queries * pitch() * 4;
        a.operands[operand_scores] = slots(b.scores, score_bytes, false);
        if (packed_) {
            a.operands[operand_q] = slots(b.q, query_bytes * element_, false);
            a.operands[operand_k] = slots(b.k, key_bytes * element_, true);
            a.operands[operand_v] = slots(b.v, key_bytes * element_, true);
            a.operands[operand_o] = slots(b.o, query_bytes * 4, false);
        } else {
            a.operands[operand_q] = caller_rows(call_.q, false);
            a.operands[operand_k] = caller_rows(call_.k, true);
            a.operands[operand_v] = caller_rows(call_.v, true);
            a.operands[operand_o] =
                layout_.direct ? caller_rows(forward_ ? call_.out : call_.d_q, false) : block_rows(memory_.o, false);
        }
        if (!forward_) {
            a.operands[operand_d_scores] = slots(b.d_scores, score_bytes, false);
            a.operands[operand_d_out] =
                packed_ ? slots(b.d_out, query_bytes * element_, false) : caller_rows(call_.d_out, false);
            const auto key_sums = [&](float *packed, const DeviceRows &direct, float *sums) {
                return packed_          ? slots(packed, key_bytes * 4, true)
                       : layout_.direct ? caller_rows(direct, true)
                                        : block_rows(sums, true);
            };
            a.operands[operand_d_k] = key_sums(b.d_k, call_.d_k, memory_.d_k);
            a.operands[operand_d_v] = key_sums(b.d_v, call_.d_v, memory_.d_v);
        }
        write_items(a, stream_);
        items_first_ = first;
        items_end_ = first + a.count;
    }

    // The matrices of an operand in the launch at hand.
    Matrices matrices(Operand operand, std::int64_t pitch, bool transposed = false) const {
        return {memory_.pointers + operand * layout_.tiles + (next_tile_ - items_first_), pitch, transposed};
    }
    // Row pitch of the caller's tensor along the tile, or of a packed one.
    std::int64_t input_pitch(const DeviceRows &rows, std::int64_t stride) const {
        return packed_ ? d_ : std::max<std::int64_t>(rows.row * stride, d_);
    }
    // Where products go: the caller's rows, packed ones, or the block's sums.
    Matrices product(Operand operand, const DeviceRows &direct, std::int64_t stride) const {
        Matrices m = matrices(operand, layout_.direct ? input_pitch(direct, stride) : packed_ ? d_ : d_ * stride);
        m.is_float32 = !layout_.direct;
        return m;
    }

    void launch() {
        const Buffers b = buffers();
        if (next_tile_ >= items_end_)
            write_items_from(next_tile_, b);
        const std::int64_t tiles = std::min(tiles_at_once_, items_end_ - next_tile_);
        const TileItem *const items = memory_.items + (next_tile_ - items_first_);
        if (packed_)
            pack(items, tiles, b);
        ScoreArguments score{};
        score.items = items;
        score.tiles = tiles;
        score.queries = set_->queries;
        score.keys = set_->keys;
        score.pitch = static_cast<std::int32_t>(pitch());
        score.query_stride = set_->query_stride;
        score.key_stride = set_->key_stride;
        score.masked = set_->masked;
        score.absent_rows = set_->absent_rows;
        score.query_positions = b.query_positions;
        score.key_positions = b.key_positions;
        score.head_dim = d_;
        score.scores = b.scores;
        if (forward_)
            launch_forward(score, tiles, b);
        else
            launch_backward(score, tiles, b);
        next_tile_ += tiles;
    }

    void multiply_scores(std::int64_t tiles, float alpha, Operand queries, std::int64_t query_pitch, Operand keys,
                         std::int64_t key_pitch, Operand scores) const {
        Matrices result = matrices(scores, pitch());
        result.is_float32 = true;
        multiply(product_, tiles, set_->queries, set_->keys, d_, alpha, matrices(queries, query_pitch),
                 matrices(keys, key_pitch, true), 0, result);
    }

    void launch_forward(const ScoreArguments &score, std::int64_t tiles, const Buffers &b) const {
        const std::int64_t q_pitch = input_pitch(call_.q, set_->query_stride);
        const std::int64_t k_pitch = input_pitch(call_.k, set_->key_stride);
        const std::int64_t v_pitch = input_pitch(call_.v, set_->key_stride);
        const auto alpha = static_cast<float>(call_.plan.scale() * log2_e);
        if (set_->keys > 0)
            multiply_scores(tiles, alpha, operand_q, q_pitch, operand_k, k_pitch, operand_scores);
        SoftmaxArguments a{};
        a.score = score;
        a.padding_keys = static_cast<float>(set_->padding_keys);
        a.fresh = is_fresh();
        a.state = memory_.state;
        a.o = memory_.o;
        a.complete = layout_.direct;
        a.lse = call_.lse;
        softmax(call_.plan.problem().dtype, a, stream_);
        if (set_->keys == 0)
            return;
        multiply(product_, tiles, set_->queries, d_, set_->keys, 1, matrices(operand_scores, probability_pitch()),
                 matrices(operand_v, v_pitch), packed_ || a.fresh ? 0.f : 1.f,
                 product(operand_o, call_.out, set_->query_stride));
        if (packed_)
            add(score.items, tiles, false, false, b.query_positions, b.o, memory_.o);
    }

    void launch_backward(const ScoreArguments &score, std::int64_t tiles, const Buffers &b) const {
        if (set_->keys == 0)
            return;
        const std::int64_t q_pitch = input_pitch(call_.q, set_->query_stride);
        const std::int64_t k_pitch = input_pitch(call_.k, set_->key_stride);
        const std::int64_t v_pitch = input_pitch(call_.v, set_->key_stride);
        const std::int64_t d_out_pitch = input_pitch(call_.d_out, set_->query_stride);
        const auto alpha = static_cast<float>(call_.plan.scale() * log2_e);
        multiply_scores(tiles, alpha, operand_q, q_pitch, operand_k, k_pitch, operand_scores);
        multiply_scores(tiles, 1, operand_d_out, d_out_pitch, operand_v, v_pitch, operand_d_scores);
        GradientArguments a{};
        a.score = score;
        a.d_scores = b.d_scores;
        a.wants_probabilities = grid_->key_results;
        a.scale = static_cast<float>(call_.plan.scale());
        a.out = call_.out;
        a.d_out = call_.d_out;
        a.lse = call_.lse;
        a.d_lse = call_.d_lse;
        score_gradients(call_.plan.problem().dtype, a, stream_);
        const bool first_of_queries = layout_.direct || (fresh_gradients_ && next_call_ == 1);
        const bool first_of_keys = first_of_queries && set_->covers_keys;
        const auto beta = [&](bool first) { return packed_ || first ? 0.f : 1.f; };
        const std::int64_t pitch = probability_pitch();
        if (grid_->key_results) {
            multiply(product_, tiles, set_->keys, d_, set_->queries, 1, matrices(operand_scores, pitch, true),
                     matrices(operand_d_out, d_out_pitch), beta(first_of_keys),
                     product(operand_d_v, call_.d_v, set_->key_stride));
            multiply(product_, tiles, set_->keys, d_, set_->queries, 1, matrices(operand_d_scores, pitch, true),
                     matrices(operand_q, q_pitch), beta(first_of_keys),
                     product(operand_d_k, call_.d_k, set_->key_stride));
        }
        if (grid_->query_results)
            multiply(product_, tiles, set_->queries, d_, set_->keys, 1, matrices(operand_d_scores, pitch),
                     matrices(operand_k, k_pitch), beta(first_of_queries),
                     product(operand_o, call_.d_q, set_->query_stride));
        if (!packed_)
            return;
        if (grid_->key_results) {
            add(score.items, tiles, true, first_of_keys, b.key_positions, b.d_k, memory_.d_k);
            add(score.items, tiles, true, first_of_keys, b.key_positions, b.d_v, memory_.d_v);
        }
        if (grid_->query_results)
            add(score.items, tiles, false, first_of_queries, b.query_positions, b.o, memory_.o);
    }

    // Probabilities lie where the scores were: rows begin where they began.
    std::int64_t probability_pitch() const { return pitch() * 4 / element_; }

    void pack(const TileItem *items, std::int64_t tiles, const Buffers &b) const {
        PackArguments a{};
        a.items = items;
        a.tiles = tiles;
        a.heads_per_kv_head = group();
        a.head_dim = d_;
        a.curve = set_->curve;
        const auto run = [&](bool of_keys, std::int32_t count, std::int32_t present, std::int64_t stride,
                             const Window &window, std::int64_t *positions, const DeviceRows &first,
                             std::byte *packed_first, const DeviceRows &second, std::byte *packed_second) {
            a.of_keys = of_keys;
            a.count = count;
            a.present = present;
            a.stride = stride;
            a.window = window;
            a.positions = positions;
            a.source[0] = first;
            a.source[1] = second;
            a.packed[0] = packed_first;
            a.packed[1] = packed_second;
            if (count > 0)
                pack_rows(call_.plan.problem().dtype, a, stream_);
        };
        run(false, set_->queries, present_queries_, set_->query_stride, block_.queries, b.query_positions, call_.q, b.q,
            call_.d_out, b.d_out);
        run(true, set_->keys, present_keys_, set_->key_stride, block_.keys, b.key_positions, call_.k, b.k, call_.v,
            b.v);
    }

    void add(const TileItem *items, std::int64_t tiles, bool of_keys, bool overwrite, const std::int64_t *positions,
             const float *rows, float *target) const {
        add_rows({items, tiles, of_keys ? set_->keys : set_->queries, d_, of_keys, overwrite, positions, rows, target},
                 stream_);
    }

    void finish_block() {
        in_block_ = false;
        const Problem &problem = call_.plan.problem();
        if (layout_.direct)
            return;
        const RowContext context{branches_,
                                 static_cast<std::int32_t>(call_.plan.branches().size()),
                                 memory_.not_finite,
                                 group(),
                                 d_,
                                 static_cast<float>(call_.plan.scale()),
                                 problem.queries,
                                 problem.keys,
                                 call_.q,
                                 call_.k,
                                 call_.v,
                                 call_.out,
                                 call_.d_out,
                                 call_.lse,
                                 call_.d_lse};
        if (forward_) {
            if (block_.queries.length > 0)
                write_outputs(problem.dtype, {block_, memory_.state, memory_.o, call_.out, call_.lse, context},
                              stream_);
            return;
        }
        write_gradients(problem.dtype,
                        {block_, grid_->query_results ? memory_.o : nullptr, grid_->key_results ? memory_.d_k : nullptr,
                         memory_.d_v, call_.d_q, call_.d_k, call_.d_v, context},
                        stream_);
    }

    const Call &call_;
    const GemmLayout &layout_;
    const BranchPlan *branches_;
    const LaneMemory &memory_;
    const int index_;
    const cudaStream_t stream_;
    const ProductType product_;
    const bool forward_;
    const std::int32_t d_;
    const std::int64_t element_;

    const BlockGrid *grid_ = nullptr;
    std::int64_t next_block_ = 0;
    bool in_block_ = false;
    Block block_;
    bool fresh_gradients_ = false;
    std::vector<SetsOf> calls_;
    std::size_t next_call_ = 0;
    std::vector<TileSet> sets_;
    std::size_t next_set_ = 0;

    std::optional<TileSet> set_; // at work; rows rounded up where packed
    std::int32_t present_queries_ = 0, present_keys_ = 0;
    bool packed_ = false;
    std::int64_t tiles_at_once_ = 1;
    std::int64_t next_tile_ = 0;
    std::int64_t items_first_ = 0, items_end_ = 0; // tiles of the set whose items are in memory
};

GemmLayout layout_for(const Plan &plan, annulus_pass pass, const Resources &resources, bool matrices) {
    return make_layout(plan, pass, resources.workspace_limit ? resources.workspace_limit : default_workspace,
                       CudaDevice::lanes, matrices);
}

const char *refusal(const Plan &plan, annulus_pass, const Resources &resources) {
    if (plan.problem().dtype == ANNULUS_FLOAT64)
        return "it has no float64; the CPU engines have";
    const auto &device = static_cast<const CudaDevice &>(*resources.device);
    if (plan.problem().dtype == ANNULUS_BFLOAT16 && device.compute_capability() < 80)
        return "bfloat16 products need a GPU of compute capability 8.0 or higher; float16 runs on this one";
    return nullptr;
}

// What the tensors will be like is not known yet.
std::size_t workspace_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    std::size_t most = 0;
    for (const bool matrices : {false, true}) {
        Workspace ledger;
        book(ledger, plan, pass, layout_for(plan, pass, resources, matrices));
        most = std::max(most, ledger.used());
    }
    return most;
}

// From the fork of the lanes to their join, which comes in any case: the workspace must not be given back under them.
class LanesAtWork {
  public:
    LanesAtWork(CudaDevice &device, cudaStream_t stream) : device_(device), stream_(stream) { device.fork(stream); }
    ~LanesAtWork() {
        if (joined_)
            return;
        try {
            device_.join(stream_);
        } catch (const Error &) { // the error that brought us here is the one to report
        }
    }
    LanesAtWork(const LanesAtWork &) = delete;
    LanesAtWork &operator=(const LanesAtWork &) = delete;
    void join() {
        joined_ = true;
        device_.join(stream_);
    }

  private:
    CudaDevice &device_;
    cudaStream_t stream_;
    bool joined_ = false;
};

void run(const Call &call, Workspace &workspace) {
    const GemmLayout layout = layout_for(call.plan, call.pass, call.resources, call.matrices && call.output_matrices);
    const Memory memory = book(workspace, call.plan, call.pass, layout);
    const auto stream = static_cast<cudaStream_t>(call.resources.stream);
    const std::vector<BranchPlan> &branches = call.plan.branches();
    if (memory.branches)
        store_branches(branches.data(), static_cast<std::int32_t>(branches.size()), memory.branches, stream);
    LanesAtWork at_work(call.device, stream);
    std::vector<Lane> lanes;
    lanes.reserve(static_cast<std::size_t>(layout.lanes));
    for (int i = 0; i < layout.lanes; ++i)
        lanes.emplace_back(call, layout, memory, i);
    for (const BlockGrid &grid : layout.grids) {
        for (Lane &lane : lanes)
            lane.start(grid);
        // In turns, so that no lane's queue runs dry while another's is filled.
        for (bool busy = true; busy;) {
            busy = false;
            for (Lane &lane : lanes)
                busy = lane.step() || busy;
        }
    }
    at_work.join();
}

void forward(const Plan &plan, const ForwardTensors &t, Workspace &workspace, const Resources &resources) {
    const std::int64_t queries = plan.problem().queries.start, keys = plan.problem().keys.start;
    Call call(plan, ANNULUS_PASS_FORWARD, resources);
    call.matrices = is_matrix(t.q) && is_matrix(t.k) && is_matrix(t.v);
    call.output_matrices = is_matrix(t.out);
    call.q = rows_of(t.q, queries);
    call.k = rows_of(t.k, keys);
    call.v = rows_of(t.v, keys);
    call.out = rows_of(t.out, queries);
    call.lse = statistic_of(t.lse, queries);
    run(call, workspace);
}

void backward(const Plan &plan, const BackwardTensors &t, Workspace &workspace, const Resources &resources) {
    const std::int64_t queries = plan.problem().queries.start, keys = plan.problem().keys.start;
    Call call(plan, ANNULUS_PASS_BACKWARD, resources);
    call.matrices = is_matrix(t.q) && is_matrix(t.k) && is_matrix(t.v) && is_matrix(t.d_out);
    call.output_matrices = is_matrix(t.d_q) && is_matrix(t.d_k) && is_matrix(t.d_v);
    call.q = rows_of(t.q, queries);
    call.k = rows_of(t.k, keys);
    call.v = rows_of(t.v, keys);
    call.out = rows_of(t.out, queries);
    call.lse = statistic_of(&t.lse, queries);
    call.d_out = rows_of(t.d_out, queries);
    call.d_lse = statistic_of(t.d_lse, queries);
    call.d_q = rows_of(t.d_q, queries);
    call.d_k = rows_of(t.d_k, keys);
    call.d_v = rows_of(t.d_v, keys);
    run(call, workspace);
}

} // namespace

const Engine gemm_engine = {ANNULUS_ENGINE_GEMM, ANNULUS_DEVICE_CUDA, refusal, workspace_bytes, forward, backward};

} // namespace annulus
