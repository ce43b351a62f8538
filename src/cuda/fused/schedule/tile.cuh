// SPDX-License-Identifier: Apache-2.0
// A tile, as the warp that finds it leaves it for those that copy its rows and those that compute.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// Positions first, first + stride, …: `rows` of them. None: nothing to compute and nothing to write.
struct Unit {
    int first, stride, rows;
    unsigned branches; // a bit for each that they take part in
    float padding_keys;

    // Row i; the last one again behind it.
    __device__ __forceinline__ int position(int i) const { return first + stride * min(i, rows - 1); }
};

// What a unit has of a run: the first `steps` steps, of which the first `full` hide nothing from any row.
struct UnitRun {
    int steps, full;
    // Of columns 2 i and 2 i + 1 of a step, modulo the period: four bits each.
    std::uint8_t multiplicities[multiplicity_period / 2];
};

// Positions first, first + stride, …: `count` of them, of which some unit sees those of the first `steps` steps. They
// are visited from the last step to the first. Steps count from the first key, but from the last query: causality then
// lets a row see the first so many in either case. Columns of a step are always in the order of positions.
template <int units> struct Run {
    int first, stride, count, steps;
    int map, residue, index; // where the first row is: tensor map, and its coordinates
    UnitRun unit[units];

    // How many are visible to a row of the other side, under causality.
    template <bool of_keys> __device__ __forceinline__ int visible(int position) const {
        if (of_keys)
            return position <= first ? count : count - min(count, quotient_up(position - first, stride));
        return position < first ? 0 : min(count, (position - first) / stride + 1);
    }
};

template <int units> struct UnitTile {
    int batch, head;
    int runs; // -1: no tile any more
    Unit unit[units];
    Run<units> run[most_runs];

    // Whether unit u, of queries, sees a key from one of its positions.
    __device__ __forceinline__ bool sees_runs(const TileGrid &grid, int u, int position) const {
        bool sees = false;
        for (int i = 0; i < runs && !sees; ++i)
            sees = run[i].unit[u].steps > 0 && (!grid.causal || run[i].template visible<false>(position) > 0);
        return sees;
    }
    // Whether unit u meets any row.
    __device__ __forceinline__ bool meets_any(int u) const {
        bool any = false;
#pragma unroll 1
        for (int i = 0; i < runs; ++i)
            any |= run[i].unit[u].steps > 0;
        return any;
    }
};

} // namespace annulus
