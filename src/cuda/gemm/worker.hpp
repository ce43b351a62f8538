// SPDX-License-Identifier: Apache-2.0
// Takes a worker through its blocks, one launch at a time, so that workers can take turns.
#pragma once

#include "cuda/gemm/set.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// Tiles that are made together: the tiles of a branch for heads whose tiles may run at the same time.
struct TilePart {
    std::size_t branch;
    std::int32_t first_head, heads;
};

// A worker's lists. They are kept from call to call, so that a second call allocates nothing.
struct WorkerLists {
    std::vector<TilePart> parts; // of a block
    std::vector<TileSet> sets;   // of a part
};

class Worker {
  public:
    Worker(const GemmRun &run, int index, WorkerLists &lists);

    // Begins this worker's blocks of a grid.
    void start(const BlockGrid &grid);
    // Launches the next piece of work. Returns false if there is none.
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
    std::optional<Block> block_;  // the current block
    Block partial_block_;         // the tiles add to the float32 results of this block
    bool partial_is_set_ = false; // these results hold something, so that tiles must add to them
    WorkerLists &lists_;          // of the current block and part
    std::size_t next_part_ = 0, next_set_ = 0;
    std::optional<SetLaunches> launches_; // of the current set
};

} // namespace annulus
