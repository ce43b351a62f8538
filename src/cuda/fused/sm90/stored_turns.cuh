// SPDX-License-Identifier: Apache-2.0
// The order in which the CTAs of one launch store dS and multiply it, and how they wait for one another.
//
// Storing is bound by the matrix units, and multiplying by the memory, which has dS but once. Side by side they take
// less time than one after the other. Cells (StoredDs) come in groups; with a few groups between storing and
// multiplying, as 2 here, turns are, in the order in which CTAs take them,
//
//     keys of group 0, of 1,   keys of group 2, queries of group 0,   keys of group 3, queries of group 1,   …
//
// so that the dS of tiles of queries has been stored when they are taken, or nearly so, and images have been multiplied
// when the next ones are to lie there (stored_ds_plan.cpp). A turn waits for turns before it alone, and CTAs take turns
// as they run: each that has been taken comes to its end, however many CTAs run.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/stored_tile.cuh"
#include "cuda/fused/sm90/tma.cuh"

namespace annulus {

struct StoredTurn {
    bool multiplies; // a tile of queries, else one of keys, whose dS it stores
    int group, cell; // the cell is one of all
    int index;       // of the cell's tiles, the longest first
};

class StoredTurns {
  public:
    // For tiles of so many row blocks of keys.
    __device__ __forceinline__ StoredTurns(const StoredDs &stored, int row_blocks_of_keys)
        : stored_(stored), cells_(stored.segments * stored.heads * stored.batches),
          cells_of_group_(stored.cells / stored.groups), groups_(quotient_up(cells_, cells_of_group_)),
          of_keys_(cells_of_group_ * quotient_up(stored.keys, row_blocks_of_keys)),
          of_queries_(cells_of_group_ * quotient_up(stored.queries, StoredDs::row_blocks_of_tile)) {}

    __device__ __forceinline__ unsigned count() const {
        return static_cast<unsigned>(groups_) * (of_keys_ + of_queries_);
    }

    __device__ __forceinline__ StoredTurn turn(int number) const {
        const int first = min(stored_.groups_behind, groups_) * of_keys_; // behind which queries begin
        if (number < first)
            return turn(false, number / of_keys_, number % of_keys_);
        number -= first;
        const int both = of_keys_ + of_queries_, both_end = (groups_ * of_keys_ - first) / of_keys_ * both;
        if (number >= both_end) { // keys have ended
            number -= both_end;
            return turn(true, both_end / both + number / of_queries_, number % of_queries_);
        }
        const int group = number / both;
        number -= group * both;
        return number < of_keys_ ? turn(false, group + first / of_keys_, number) : turn(true, group, number - of_keys_);
    }
    // The last group may have fewer cells than others.
    __device__ __forceinline__ bool exists(const StoredTurn &turn) const { return turn.cell < cells_; }

    // Whether what the turn needs is done: all dS of its group, or that the images that lay there have been multiplied.
    __device__ __forceinline__ bool is_ready(const StoredTurn &turn) const {
        const int uses_before = turn.group / stored_.groups; // of the group's place in memory
        const int needed = turn.multiplies ? (uses_before + 1) * of_keys_ : uses_before * of_queries_;
        unsigned done;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(count_of(turn.group, !turn.multiplies)) : "memory");
        return done >= static_cast<unsigned>(needed);
    }
    // What the calling thread has seen to be read or written comes before.
    __device__ __forceinline__ void finish(int group, bool multiplies) const {
        fence_async_proxies(); // dS is read and written by bulk copies
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count_of(group, multiplies)) : "memory");
    }

  private:
    __device__ __forceinline__ StoredTurn turn(bool multiplies, int group, int number) const {
        return {multiplies, group, group * cells_of_group_ + number % cells_of_group_, number / cells_of_group_};
    }
    __device__ __forceinline__ unsigned *count_of(int group, bool multiplies) const {
        return stored_.done + 2 * (group % stored_.groups) + multiplies;
    }

    const StoredDs &stored_;
    const int cells_, cells_of_group_, groups_;
    const int of_keys_, of_queries_; // tiles of a group
};

} // namespace annulus
