// SPDX-License-Identifier: Apache-2.0
// Which scores of a thread count, and how often.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/schedule/tile.cuh"

#include <cmath>

namespace annulus {

// Tells which of a thread's scores in a block are hidden. A row sees its first `visible_count` columns, counted from
// the end of the range from which blocks count (Range).
template <bool rows_are_keys, int range_block_rows> struct Mask {
    int column;           // of the thread's first element
    int visible_count[2]; // how many columns each of its two rows sees

    __device__ __forceinline__ bool is_hidden(int i) const {
        const int own = 8 * (i / 4) + i % 2,
                  all = visible_count[i / 2 % 2]; // `own` becomes an immediate of the instruction
        return rows_are_keys ? own < range_block_rows - all - column : own >= all - column;
    }
};

// Tells which of a thread's scores in a block are hidden because their columns are the first rows of a range, counted
// as in Mask. A window hides the first `hidden_count` columns from a row.
template <bool rows_are_keys, int range_block_rows> struct FirstRowsMask {
    int column; // of the thread's first element
    int hidden_count[2];

    __device__ __forceinline__ bool is_hidden(int i) const {
        const int own = 8 * (i / 4) + i % 2, hidden = hidden_count[i / 2 % 2];
        return rows_are_keys ? own >= range_block_rows - hidden - column : own < hidden - column;
    }
    // Sets the hidden elements to `value`.
    template <int count> __device__ __forceinline__ void overwrite(float (&x)[count], float value) const {
#pragma unroll
        for (int i = 0; i < count; ++i)
            if (is_hidden(i))
                x[i] = value;
    }
};

// Returns the mask of block `block` of a range that hides its first rows. `thread` is a FragmentThread.
template <bool rows_are_keys, int range_block_rows, class Thread, int row_blocks>
__device__ __forceinline__ FirstRowsMask<rows_are_keys, range_block_rows>
find_first_rows_mask(const Thread &thread, const RowBlock &row_block, const Range<row_blocks> &range, int block) {
    FirstRowsMask<rows_are_keys, range_block_rows> mask{thread.column(), {}};
#pragma unroll
    for (int r = 0; r < 2; ++r)
        mask.hidden_count[r] =
            range.template hidden<rows_are_keys>(row_block.position(thread.row(r))) - block * range_block_rows;
    return mask;
}

// Turns infinite scores into NaN, and so their rows. An infinite score means that a partial sum of Q . K has left the
// range of float32, and -infinity would pass for a key that is not seen. The kernels of sm90/ do without this: it would
// take 8 % of their time at D = 64.
template <int count> __device__ __forceinline__ void refuse_infinite(float (&s)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i)
        s[i] = fmaf(s[i], 0.f, s[i]);
}

// Sets the scores of keys that the thread's rows do not see to -infinity, so that they get no probability.
template <int range_block_rows>
__device__ __forceinline__ void hide(float (&s)[range_block_rows / 2], const Mask<false, range_block_rows> &mask) {
#pragma unroll
    for (int i = 0; i < range_block_rows / 2; ++i)
        if (mask.is_hidden(i))
            s[i] = -INFINITY;
}

// Loads log2 of the multiplicities of the thread's two columns of every eight, in a row block's range. `column` is the
// first of the two columns.
template <class Log2>
__device__ __forceinline__ void load_weights(const SeenBlocks &own, int column, float (&weight)[2],
                                             const Log2 &log2_of) {
    const int two = own.multiplicities[column / 2];
    weight[0] = log2_of(static_cast<float>(two % 16));
    weight[1] = log2_of(static_cast<float>(two / 16));
}

} // namespace annulus
