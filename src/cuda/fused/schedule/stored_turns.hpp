// SPDX-License-Identifier: Apache-2.0
// The order in which the CTAs of one launch store dS and multiply it.
//
// Storing is bound by the matrix units, and multiplying by the memory, which has dS but once: side by side they take
// less time than one after the other. Cells (StoredDs) come in groups. Turns, in the order in which CTAs take them, are
// the tiles of keys of one group and those of queries of a group some way behind, say 2:
//
//     keys of group 0,   keys of 1,   keys of 2, queries of 0,   keys of 3, queries of 1,   …   queries of the last
//
// Then the dS of tiles of queries has been stored when they are taken, or nearly so, and images have been multiplied
// when the next ones are to lie in their place (stored_ds_plan.cpp). A turn waits for turns before it alone, and CTAs
// take turns as they run: each that has been taken comes to its end, however many CTAs run.
//
// Where dS of some whole cells is more than there is memory for, there are several passes over all cells, each with a
// part of every cell's queries. A group is then of one cell. What a tile of keys finds for a part it adds to what the
// pass before has left of the same cell, so that it waits for that, too.
//
// Where others wait for the gradients of keys, a launch takes the turns up to the last tile of keys, and a second one
// what is left: tiles of queries, whose dS is all there.
#pragma once

#include "cuda/fused/schedule/fast_divmod.hpp"

namespace annulus {

struct StoredTurn {
    bool multiplies; // a tile of queries, else one of keys, whose dS it stores
    int group, pass;
    int cell;  // of the pass's
    int index; // of the cell's tiles
};

struct TurnRange {
    int first, end;
};

struct StoredTurns {
    FastDivmod cells_of_group, tiles_of_group, groups_in_memory;
    int tiles_of_keys; // of a group's tiles
    FastDivmod cells_of_pass;
    int passes = 1;
    int groups, groups_behind; // of all passes
    TurnRange of_launch;

    constexpr int count() const { return (groups + groups_behind) * tiles_of_group.value; }
    constexpr TurnRange all() const { return {0, count()}; }
    constexpr TurnRange until_keys_end() const { return {0, end_of_keys()}; }
    constexpr TurnRange after_keys() const { return {end_of_keys(), count()}; }
    constexpr StoredTurn turn(int number) const {
        const int group = tiles_of_group.quotient(number), tile = tiles_of_group.remainder(number);
        return tile < tiles_of_keys ? of_group(false, group, tile)
                                    : of_group(true, group - groups_behind, tile - tiles_of_keys);
    }
    // The first and the last turns may be of no group, and the last group may have fewer cells than others.
    constexpr bool has_group(const StoredTurn &turn) const { return turn.group >= 0 && turn.group < groups; }
    constexpr bool has_cell(const StoredTurn &turn) const { return turn.pass < passes; }

    // What a launch counts for each group in memory: turns of keys that have ended so far, or of queries. A turn waits
    // until of the other kind so many have: all dS of its group, or what lay in its place.
    constexpr int place(int group) const { return groups_in_memory.remainder(group); }
    constexpr int needed(const StoredTurn &turn) const {
        if (of_launch.first > 0)
            return 0;
        return turn.multiplies ? keys_until(turn.group)
                               : groups_in_memory.quotient(turn.group) * (tiles_of_group.value - tiles_of_keys);
    }
    // Of a tile of keys after the first pass, too: the group of its cell in the pass before, and how many turns of keys
    // must have ended in that one's place.
    constexpr bool adds(const StoredTurn &turn) const { return !turn.multiplies && turn.pass > 0 && has_cell(turn); }
    constexpr int group_before(const StoredTurn &turn) const { return turn.group - cells_of_pass.value; }
    constexpr int needed_before(const StoredTurn &turn) const { return keys_until(group_before(turn)); }

  private:
    // Tiles of keys of the groups in this one's place, up to it.
    constexpr int keys_until(int group) const { return (groups_in_memory.quotient(group) + 1) * tiles_of_keys; }
    constexpr int end_of_keys() const { return (groups - 1) * tiles_of_group.value + tiles_of_keys; }
    constexpr StoredTurn of_group(bool multiplies, int group, int tile) const {
        const int cell = group * cells_of_group.value + cells_of_group.remainder(tile); // of those of all passes
        return {multiplies, group, cells_of_pass.quotient(cell), cells_of_pass.remainder(cell),
                cells_of_group.quotient(tile)};
    }
};

} // namespace annulus
