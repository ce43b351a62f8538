// SPDX-License-Identifier: Apache-2.0
// The order in which the CTAs of one launch store dS and multiply it with K.
//
// Storing dS is bound by the tensor cores. Multiplying it is bound by memory, which holds each dS once. Side by side
// the two take less time than one after the other. Cells (StoredDs) are divided into groups. A turn is one tile. CTAs
// take the turns in one order: the tiles of keys of one group, then the tiles of queries of a group a few places
// behind, for instance 2:
//
//     keys of group 0,   keys of 1,   keys of 2, queries of 0,   keys of 3, queries of 1,   …   queries of the last
//
// So the dS of a tile of queries has been stored, or nearly so, when a CTA takes that tile. The images of dS have been
// multiplied before the next images take their place (stored_ds_plan.cpp). A turn waits only for earlier turns, and
// CTAs take turns while they run. So every turn that was taken ends, however many CTAs run.
//
// If the dS of a few segments does not fit into memory, a cell is a slice of the keys of a segment. A tile of queries
// then has a turn for each slice, and waits for its sums of the slice before when it has multiplied (StoredProduct).
//
// If that does not suffice, there are several passes over all cells. Each pass handles a part of every cell's queries.
// A group is then one cell. A tile of keys adds its results for a part to the results that the pass before stored for
// the same cell. So it also waits for that pass.
//
// If other ranks wait for the gradients of keys, a launch takes the turns up to the last tile of keys. A second launch
// takes the remaining tiles of queries, whose dS is already complete. Sums of slices go on where the first launch left
// them.
#pragma once

#include "cuda/device/fast_divmod.hpp"

namespace annulus {

struct StoredTurn {
    bool multiplies; // a tile of queries that multiplies dS; otherwise a tile of keys that stores it
    int group, pass;
    int cell;  // index among the cells of the pass
    int index; // index among the cell's tiles of this kind
};

struct TurnRange {
    int first, end;
};

struct StoredTurns {
    FastDivmod cells_of_group, tiles_of_group, groups_in_memory;
    int key_tiles_of_group; // tiles of keys in a group
    FastDivmod cells_of_pass;
    int passes = 1;
    int groups, groups_behind; // groups in all passes; how many groups tiles of queries are behind tiles of keys
    TurnRange launch_turns;

    constexpr int count() const { return (groups + groups_behind) * tiles_of_group.value; }
    constexpr TurnRange all() const { return {0, count()}; }
    constexpr TurnRange until_keys_end() const { return {0, end_of_keys()}; }
    constexpr TurnRange after_keys() const { return {end_of_keys(), count()}; }
    constexpr StoredTurn turn(int number) const {
        const int group = tiles_of_group.quotient(number), tile = tiles_of_group.remainder(number);
        return tile < key_tiles_of_group ? make_turn(false, group, tile)
                                         : make_turn(true, group - groups_behind, tile - key_tiles_of_group);
    }
    // The first and the last turns may belong to no group, and the last group may have fewer cells.
    constexpr bool has_group(const StoredTurn &turn) const { return turn.group >= 0 && turn.group < groups; }
    constexpr bool has_cell(const StoredTurn &turn) const { return turn.pass < passes; }

    // A launch has two counters for each group in memory: ended turns of keys and ended turns of queries. A turn waits
    // until the counter of the other kind reaches needed(). Then all dS of its group is stored, or the dS that lay in
    // its place has been multiplied.
    constexpr int place(int group) const { return groups_in_memory.remainder(group); }
    constexpr int needed(const StoredTurn &turn) const {
        if (launch_turns.first > 0)
            return 0;
        return turn.multiplies ? keys_until(turn.group)
                               : groups_in_memory.quotient(turn.group) * (tiles_of_group.value - key_tiles_of_group);
    }
    // A tile of keys after the first pass also waits for its cell's group in the pass before. needed_before() is how
    // many turns of keys must have ended in the place of that group.
    constexpr bool adds(const StoredTurn &turn) const { return !turn.multiplies && turn.pass > 0 && has_cell(turn); }
    constexpr int group_before(const StoredTurn &turn) const { return turn.group - cells_of_pass.value; }
    constexpr int needed_before(const StoredTurn &turn) const { return keys_until(group_before(turn)); }

  private:
    // Returns the number of tiles of keys in the groups that use this group's place, up to and including it.
    constexpr int keys_until(int group) const { return (groups_in_memory.quotient(group) + 1) * key_tiles_of_group; }
    constexpr int end_of_keys() const { return (groups - 1) * tiles_of_group.value + key_tiles_of_group; }
    constexpr StoredTurn make_turn(bool multiplies, int group, int tile) const {
        const int cell =
            group * cells_of_group.value + cells_of_group.remainder(tile); // index among the cells of all passes
        return {multiplies, group, cells_of_pass.quotient(cell), cells_of_pass.remainder(cell),
                cells_of_group.quotient(tile)};
    }
};

} // namespace annulus
