// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/set.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <cstdint>
#include <numbers>

namespace annulus {

namespace {

Matrices transposed(Matrices m) {
    m.transposed = true;
    return m;
}

// Rounds row counts up to multiples of the score pitch with absent rows, so that cuBLAS sees multiples of 16 bytes.
TileSet rounded_up(TileSet set) {
    const auto round = [&](std::int32_t &rows) {
        const auto more = static_cast<std::int32_t>(score_pitch(rows));
        set.has_absent_rows = set.has_absent_rows || more != rows;
        rows = more;
    };
    round(set.queries);
    round(set.keys);
    return set;
}

// Returns how many tiles a launch has, at most `max_tiles`, for float32. cuBLAS gives products with head_dim columns to
// thread blocks of about 64 x 64, one at a time on a multiprocessor. A last round in which few multiprocessors work
// takes as long as a full one. Fewer tiles are better if they save a good part of a round. Otherwise more tiles are
// better, for the other products and kernels.
std::int64_t tiles_of_full_rounds(std::int64_t max_tiles, std::int64_t rows, std::int64_t columns,
                                  int multiprocessors) {
    const std::int64_t blocks = divide_up(rows, 64) * divide_up(columns, 64); // of a tile
    const auto share_of_work = [&](std::int64_t tiles) {
        const std::int64_t rounds = divide_up(tiles * blocks, multiprocessors);
        return static_cast<double>(tiles * blocks) / static_cast<double>(rounds * multiprocessors);
    };
    constexpr double worth_it = 1.2;
    std::int64_t best = max_tiles;
    for (std::int64_t tiles = max_tiles - 1; tiles >= divide_up(4 * max_tiles, 5); --tiles)
        if (share_of_work(tiles) > share_of_work(best))
            best = tiles;
    return share_of_work(best) > worth_it * share_of_work(max_tiles) ? best : max_tiles;
}

} // namespace

SetLaunches::SetLaunches(const WorkerContext &worker, const Block &block, const TileSet &set, const SetRole &role)
    : worker_(worker), run_(worker.run), call_(worker.run.call), block_(block), role_(role), d_(call_.head_dim()),
      element_(dtype_bytes(call_.problem().dtype)), is_packed_(!run_.inputs_are_matrices || needs_packing(set)),
      present_queries_(set.queries), present_keys_(set.keys), set_(is_packed_ ? rounded_up(set) : set) {
    const std::int64_t bytes = tile_bytes(call_.problem(), run_.pass, set_.queries, set_.keys, is_packed_);
    const auto available = static_cast<std::int64_t>(run_.layout.score_bytes);
    tiles_at_once_ = std::clamp<std::int64_t>(bytes > 0 ? available / bytes : run_.layout.tiles, 1,
                                              std::min(run_.layout.tiles, set_.count()));
    if (call_.problem().dtype == ANNULUS_FLOAT32 && tiles_at_once_ < set_.count())
        tiles_at_once_ = tiles_of_full_rounds(tiles_at_once_, set_.queries, d_, call_.device.multiprocessors());
    buffers_ = take_buffers();
}

// All pieces are aligned to 16 bytes: rows are multiples of 8 elements or floats.
SetLaunches::Buffers SetLaunches::take_buffers() const {
    std::byte *next = worker_.memory.scores;
    const auto bytes = [&](std::int64_t count) {
        std::byte *const piece = next;
        next += count;
        return piece;
    };
    const auto floats = [&](std::int64_t count) { return reinterpret_cast<float *>(bytes(count * 4)); };
    const auto positions = [&](std::int64_t count) { return reinterpret_cast<std::int64_t *>(bytes(count * 8)); };

    const bool backward = !run_.is_forward();
    const std::int64_t queries = tiles_at_once_ * set_.queries, keys = tiles_at_once_ * set_.keys;
    Buffers b{};
    b.scores = floats(queries * score_pitch(set_.keys));
    if (backward)
        b.d_scores = floats(queries * score_pitch(set_.keys));
    if (!is_packed_)
        return b;
    b.q = bytes(queries * d_ * element_);
    b.k = bytes(keys * d_ * element_);
    b.v = bytes(keys * d_ * element_);
    b.o = floats(queries * d_);
    if (backward) {
        b.d_out = bytes(queries * d_ * element_);
        b.d_k = floats(keys * d_);
        b.d_v = floats(keys * d_);
    }
    b.query_positions = positions(queries);
    b.key_positions = positions(keys);
    return b;
}

namespace {

// Returns the address `bytes` before `base`, where head 0 of batch entry 0 would be. It may lie outside the memory.
char *before(const void *base, std::int64_t bytes) {
    return reinterpret_cast<char *>(reinterpret_cast<std::uintptr_t>(base) - static_cast<std::uintptr_t>(bytes));
}

} // namespace

OperandAddress SetLaunches::caller_rows(const DeviceRows &rows, bool is_key_side) const {
    return {static_cast<char *>(rows.data),
            rows.batch * element_,
            rows.head * element_,
            rows.row * element_,
            0,
            rows.start,
            rows.stride,
            is_key_side};
}

// Returns the addresses of rows of the block's float32 results.
OperandAddress SetLaunches::block_rows(float *target, bool is_key_side) const {
    const Window &window = this->window(is_key_side);
    const std::int32_t group = is_key_side ? call_.heads_per_kv_head() : 1;
    const std::int64_t stride = this->stride(is_key_side), row = d_ * 4, head = row * divide_up(window.length, stride),
                       batch = head * (block_.heads / group);
    return {before(target, block_.first_head / group * head + block_.first_batch * batch),
            batch,
            head,
            row,
            0,
            window.start,
            stride,
            is_key_side};
}

// Returns the addresses of rows that lie tile by tile in the score memory.
OperandAddress SetLaunches::packed_rows(void *rows, std::int64_t element_bytes, bool is_key_side) const {
    return {static_cast<char *>(rows), 0, 0, 0, this->rows(is_key_side) * d_ * element_bytes, 0, 1, is_key_side};
}

void SetLaunches::write_items_from(std::int64_t first) {
    const GemmLayout &layout = run_.layout;
    const WorkerMemory &memory = worker_.memory;
    ItemArguments a{};
    a.set = set_;
    a.first = first;
    // Only whole launches, at most the number for which there is room.
    a.count = std::min(set_.count() - first, layout.tiles / tiles_at_once_ * tiles_at_once_);
    a.tiles_per_launch = tiles_at_once_;
    a.heads_per_kv_head = call_.heads_per_kv_head();
    a.block = block_;
    a.key_stride = stride(true);
    a.items = memory.items;
    a.pointers = memory.pointers;
    a.capacity = layout.tiles;

    const auto input = [&](std::byte *packed, const DeviceRows &rows, bool is_key_side) {
        return is_packed_ ? packed_rows(packed, element_, is_key_side) : caller_rows(rows, is_key_side);
    };
    const auto product = [&](float *packed, const DeviceRows &rows, float *target, bool is_key_side) {
        if (is_packed_)
            return packed_rows(packed, 4, is_key_side);
        return layout.results == Results::direct ? caller_rows(rows, is_key_side) : block_rows(target, is_key_side);
    };
    const auto matrix = [&](float *scores) {
        OperandAddress address;
        address.base = reinterpret_cast<char *>(scores);
        address.slot = set_.queries * score_pitch(set_.keys) * 4;
        return address;
    };
    const Buffers &b = buffers_;
    a.operands[operand_q] = input(b.q, call_.q, false);
    a.operands[operand_k] = input(b.k, call_.k, true);
    a.operands[operand_v] = input(b.v, call_.v, true);
    a.operands[operand_scores] = matrix(b.scores);
    a.operands[operand_o] = product(b.o, run_.is_forward() ? call_.out : call_.d_q, memory.o, false);
    if (!run_.is_forward()) {
        a.operands[operand_d_out] = input(b.d_out, call_.d_out, false);
        a.operands[operand_d_scores] = matrix(b.d_scores);
        a.operands[operand_d_k] = product(b.d_k, call_.d_k, memory.d_k, true);
        a.operands[operand_d_v] = product(b.d_v, call_.d_v, memory.d_v, true);
    }
    write_items(a, worker_.stream);
    items_first_ = first;
    items_end_ = first + a.count;
}

void *const *SetLaunches::pointers_of(Operand operand) const {
    return worker_.memory.pointers + operand * run_.layout.tiles + (next_tile_ - items_first_);
}

// Returns the distance between consecutive rows of a tile, in rows of the tensor. It is 0 if the tile has one row,
// since its stride may be very large.
std::int64_t SetLaunches::step(bool is_key_side) const {
    if (rows(is_key_side) == 1)
        return 0;
    return (is_key_side ? set_.key_stride : set_.query_stride) / stride(is_key_side);
}

// Returns the rows of the caller's tensor along the tile, or their packed copy.
Matrices SetLaunches::input(Operand operand, const DeviceRows &rows, bool is_key_side) const {
    return {pointers_of(operand), is_packed_ ? d_ : std::max<std::int64_t>(rows.row * step(is_key_side), d_)};
}

// Returns the matrix for results: the caller's rows, packed rows, or the block's float32 results.
Matrices SetLaunches::product(Operand operand, const DeviceRows &rows, bool is_key_side) const {
    Matrices m = input(operand, rows, is_key_side);
    if (run_.layout.results == Results::direct)
        return m;
    m.is_float32 = true;
    m.pitch = is_packed_ ? d_ : std::max<std::int64_t>(d_ * step(is_key_side), d_);
    return m;
}

Matrices SetLaunches::scores(Operand operand) const {
    Matrices m{pointers_of(operand), score_pitch(set_.keys)};
    m.is_float32 = true;
    return m;
}

// Returns the probabilities, which lie in place of the scores: each row begins where its scores began.
Matrices SetLaunches::probabilities(Operand operand) const {
    Matrices m = scores(operand);
    m.is_float32 = false;
    m.pitch = m.pitch * 4 / element_;
    return m;
}

void SetLaunches::multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, const Matrices &a,
                           const Matrices &b, bool adds, const Matrices &c) const {
    annulus::multiply(worker_.product, tiles_, rows, columns, inner, a, b, adds, c);
}

void SetLaunches::pack(bool is_key_side, const PackedTensor &first, const PackedTensor &second) const {
    PackArguments a{};
    a.items = items();
    a.tiles = tiles_;
    a.heads_per_kv_head = call_.heads_per_kv_head();
    a.head_dim = d_;
    a.curve = set_.curve;
    a.is_key_side = is_key_side;
    a.count = rows(is_key_side);
    a.present = is_key_side ? present_keys_ : present_queries_;
    a.stride = is_key_side ? set_.key_stride : set_.query_stride;
    a.window = window(is_key_side);
    a.tensors = {first, second};
    a.positions = positions(is_key_side);
    pack_rows(call_.problem().dtype, a, worker_.stream);
}

void SetLaunches::add_packed(bool is_key_side, bool overwrites, const float *rows, float *target) const {
    add_rows({items(), tiles_, this->rows(is_key_side), d_, is_key_side, overwrites, block_.keys.start, stride(true),
              positions(is_key_side), rows, target},
             worker_.stream);
}

void SetLaunches::launch() {
    if (next_tile_ >= items_end_)
        write_items_from(next_tile_);
    tiles_ = std::min(tiles_at_once_, items_end_ - next_tile_);
    if (is_packed_) {
        pack(false, {call_.q, buffers_.q}, {call_.d_out, buffers_.d_out});
        if (set_.keys > 0)
            pack(true, {call_.k, buffers_.k}, {call_.v, buffers_.v});
    }
    ScoreArguments score{};
    score.items = items();
    score.tiles = tiles_;
    score.queries = set_.queries;
    score.keys = set_.keys;
    score.pitch = static_cast<std::int32_t>(score_pitch(set_.keys));
    score.query_stride = set_.query_stride;
    score.key_stride = set_.key_stride;
    score.is_masked = set_.is_masked;
    score.bounds = set_.bounds;
    score.has_absent_rows = set_.has_absent_rows;
    score.query_positions = buffers_.query_positions;
    score.key_positions = buffers_.key_positions;
    score.head_dim = d_;
    score.scores = buffers_.scores;
    score.scale_log2 = static_cast<float>(call_.plan.scale() * std::numbers::log2e);
    if (run_.is_forward())
        launch_forward(score);
    else if (set_.keys > 0) // padding keys have no gradients
        launch_backward(score);
    next_tile_ += tiles_;
}

// Hides the keys that an earlier branch already has. Returns the arguments for the scores afterwards.
ScoreArguments SetLaunches::hide_repeated(ScoreArguments score) const {
    if (role_.earlier_branches == 0 || set_.keys == 0)
        return score;
    hide_repeated_keys({score, run_.memory.branches, role_.earlier_branches}, worker_.stream);
    score.scale_log2 = 1;
    score.has_hidden = true;
    return score;
}

void SetLaunches::launch_forward(const ScoreArguments &score) const {
    if (set_.keys > 0)
        multiply(set_.queries, set_.keys, d_, input(operand_q, call_.q, false),
                 transposed(input(operand_k, call_.k, true)), false, scores(operand_scores));
    SoftmaxArguments a{};
    a.score = hide_repeated(score);
    a.padding_keys = static_cast<float>(set_.padding_keys);
    // Packed products are added to O, so O must be initialised.
    a.is_fresh = role_.first && set_.covers_queries && !is_packed_ && set_.keys > 0;
    a.state = worker_.memory.state;
    a.o = worker_.memory.o;
    a.is_complete = run_.layout.results == Results::direct;
    a.lse = call_.lse;
    softmax(call_.problem().dtype, a, worker_.stream);
    if (set_.keys == 0)
        return;
    multiply(set_.queries, d_, set_.keys, probabilities(operand_scores), input(operand_v, call_.v, true),
             !is_packed_ && !a.is_fresh, product(operand_o, call_.out, false));
    if (is_packed_)
        add_packed(false, false, buffers_.o, worker_.memory.o);
}

void SetLaunches::launch_backward(const ScoreArguments &score) const {
    const Matrices q = input(operand_q, call_.q, false), k = input(operand_k, call_.k, true);
    const Matrices v = input(operand_v, call_.v, true);
    const Matrices d_out = input(operand_d_out, call_.d_out, false);
    multiply(set_.queries, set_.keys, d_, q, transposed(k), false, scores(operand_scores));
    const bool only_v = call_.problem().gradients.only_v;
    if (!only_v)
        multiply(set_.queries, set_.keys, d_, d_out, transposed(v), false, scores(operand_d_scores));
    GradientArguments a{};
    a.score = hide_repeated(score);
    a.d_scores = only_v ? nullptr : buffers_.d_scores;
    a.wants_probabilities = role_.key_results;
    a.scale = static_cast<float>(call_.plan.scale());
    a.out = call_.out;
    a.d_out = call_.d_out;
    a.lse = call_.lse;
    a.d_lse = call_.d_lse;
    score_gradients(call_.problem().dtype, a, worker_.stream);

    const WorkerMemory &memory = worker_.memory;
    const bool overwrites_keys = role_.first && set_.covers_keys;
    const bool overwrites_queries = role_.first && set_.covers_queries;
    const Matrices p = probabilities(operand_scores), ds = probabilities(operand_d_scores);
    if (role_.key_results) {
        const bool adds = !is_packed_ && !overwrites_keys;
        multiply(set_.keys, d_, set_.queries, transposed(p), d_out, adds, product(operand_d_v, call_.d_v, true));
        if (is_packed_)
            add_packed(true, overwrites_keys, buffers_.d_v, memory.d_v);
        if (!only_v)
            multiply(set_.keys, d_, set_.queries, transposed(ds), q, adds, product(operand_d_k, call_.d_k, true));
        if (is_packed_ && !only_v)
            add_packed(true, overwrites_keys, buffers_.d_k, memory.d_k);
    }
    if (role_.query_results) {
        multiply(set_.queries, d_, set_.keys, ds, k, !is_packed_ && !overwrites_queries,
                 product(operand_o, call_.d_q, false));
        if (is_packed_)
            add_packed(false, overwrites_queries, buffers_.o, memory.o);
    }
}

} // namespace annulus
