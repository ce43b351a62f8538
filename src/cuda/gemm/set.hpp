// SPDX-License-Identifier: Apache-2.0
// The launches of one set of equal tiles: packing if it is needed, products, and the kernels between them.
#pragma once

#include "cuda/gemm/call.hpp"

#include <cstddef>
#include <cstdint>

namespace annulus {

// Which results a block computes from a set, and what its results already hold.
struct SetRole {
    bool query_results, key_results; // O or dQ; dK and dV
    bool first; // the block's float32 results hold nothing yet: tiles that cover their rows overwrite them
    std::int32_t earlier_branches; // the first branches that may have keys of the tiles' queries which count once
};

class SetLaunches {
  public:
    // The tiles add to the float32 results of `block`.
    SetLaunches(const WorkerContext &worker, const Block &block, const TileSet &set, const SetRole &role);

    bool is_done() const { return next_tile_ == set_.count(); }
    // Launches the next tiles.
    void launch();

  private:
    // Pointers into the worker's score memory.
    struct Buffers {
        float *scores, *d_scores;
        // For packed tiles: inputs, products, and the positions of rows.
        std::byte *q, *d_out, *k, *v;
        float *o, *d_k, *d_v;
        std::int64_t *query_positions, *key_positions;
    };

    // Properties of one side of the tiles, its keys or its queries.
    std::int32_t rows(bool is_key_side) const { return is_key_side ? set_.keys : set_.queries; }
    const Window &window(bool is_key_side) const { return is_key_side ? block_.keys : block_.queries; }
    // Positions between consecutive rows of the tensors.
    std::int64_t stride(bool is_key_side) const { return is_key_side ? call_.plan.problem().key_stride : 1; }
    std::int64_t *positions(bool is_key_side) const {
        return is_key_side ? buffers_.key_positions : buffers_.query_positions;
    }
    // The items of the current launch.
    const TileItem *items() const { return worker_.memory.items + (next_tile_ - items_first_); }

    Buffers take_buffers() const;
    void write_items_from(std::int64_t first);
    OperandAddress caller_rows(const DeviceRows &rows, bool is_key_side) const;
    OperandAddress block_rows(float *target, bool is_key_side) const;
    OperandAddress packed_rows(void *rows, std::int64_t element_bytes, bool is_key_side) const;

    void *const *pointers_of(Operand operand) const;
    std::int64_t step(bool is_key_side) const;
    Matrices input(Operand operand, const DeviceRows &rows, bool is_key_side) const;
    Matrices product(Operand operand, const DeviceRows &rows, bool is_key_side) const;
    Matrices scores(Operand operand) const;
    Matrices probabilities(Operand operand) const;
    void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, const Matrices &a, const Matrices &b,
                  bool adds, const Matrices &c) const;

    void pack(bool is_key_side, const PackedTensor &first, const PackedTensor &second) const;
    void add_packed(bool is_key_side, bool overwrites, const float *rows, float *target) const;
    ScoreArguments hide_repeated(ScoreArguments score) const;
    void launch_forward(const ScoreArguments &score) const;
    void launch_backward(const ScoreArguments &score) const;

    const WorkerContext &worker_;
    const GemmRun &run_;
    const CudaCall &call_;
    const Block &block_;
    const SetRole role_;
    const std::int32_t d_;
    const std::int64_t element_;
    const bool is_packed_;
    const std::int32_t present_queries_, present_keys_;
    TileSet set_; // with rows rounded up if packed
    std::int64_t tiles_at_once_;
    Buffers buffers_;

    std::int64_t next_tile_ = 0;
    std::int64_t items_first_ = 0, items_end_ = 0; // the range of tiles whose items and pointers are in memory
    std::int64_t tiles_ = 0;                       // number of tiles of the current launch
};

} // namespace annulus
