// SPDX-License-Identifier: Apache-2.0
// A worker's way through its blocks, one launch at a time, so that workers can take turns.
#pragma once

#include "cuda/gemm/set.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// Tiles that are made at a time: those of a branch, and of heads whose tiles may run side by side.
struct TilePart {
    std::size_t branch;
    std::int32_t first_head, heads;
};

// What a worker lists on its way, reused from call to call: the second one allocates nothing.
struct WorkerLists {
    std::vector<TilePart> parts; // of a block
    std::vector<TileSet> sets;   // of a part
};

class Worker {
  public:
    Worker(const GemmRun &run, int index, WorkerLists &lists);

    // The blocks of a grid that are this worker's.
    void start(const BlockGrid &grid);
    // Launches what comes next; false when nothing is left.
    bool step();

    // Launches hold references into the worker.
    Worker(const Worker &) = delete;
    Worker &operator=(const Worker &) = delete;

  private:
    void begin_block();
    void clear_unreached_rows() const;
    bool first_branch_reaches_all_rows() const;
    void begin_part();
    void begin_set();
    std::int32_t earlier_branches(std::size_t branch, const TileSet &set) const;
    void finish_block();

    const int index_;
    const WorkerContext context_;

    const BlockGrid *grid_ = nullptr;
    std::int64_t next_block_ = 0;
    std::optional<Block> block_;  // at work
    Block partial_block_;         // whose float32 results the tiles add to
    bool partial_is_set_ = false; // these hold something: tiles must add to them
    WorkerLists &lists_;          // of the block and the part at work
    std::size_t next_part_ = 0, next_set_ = 0;
    std::optional<SetLaunches> launches_; // of the set at work
};

} // namespace annulus
