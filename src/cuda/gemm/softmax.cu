// SPDX-License-Identifier: Apache-2.0
// Kernels on score matrices, which read and write each score once, in place. A group of threads holds a row in
// registers in between.
#include "core/softmax_limits.hpp"
#include "cuda/device/kernel_common.cuh"
#include "cuda/gemm/kernels.hpp"

namespace annulus {

namespace {

// See kernels.hpp.
constexpr float lazy_maximum = 8;

// A group of `threads` threads for one row: a part of a warp, or whole warps.
template <int threads> struct RowThreads {
    static constexpr int rows_in_block = block_threads / threads;
    static __device__ int row_in_block() { return static_cast<int>(threadIdx.x) / threads; }
    static __device__ int rank() { return static_cast<int>(threadIdx.x) % threads; }

    // All threads of the block must call it together.
    template <class Combine> static __device__ float reduce(float x, Combine combine) {
        constexpr int width = threads < 32 ? threads : 32;
        for (int step = width / 2; step > 0; step /= 2)
            x = combine(x, __shfl_xor_sync(~0u, x, step, width));
        if constexpr (threads > 32) {
            constexpr int warps = threads / 32;
            __shared__ float partial[block_threads / 32];
            __syncthreads(); // the last reduction has been read
            if (threadIdx.x % 32 == 0)
                partial[threadIdx.x / 32] = x;
            __syncthreads();
            x = partial[row_in_block() * warps];
            for (int i = 1; i < warps; ++i)
                x = combine(x, partial[row_in_block() * warps + i]);
        }
        return x;
    }
    static __device__ float max(float x) {
        return reduce(x, [](float a, float b) { return fmaxf(a, b); });
    }
    static __device__ float sum(float x) {
        return reduce(x, [](float a, float b) { return a + b; });
    }
};

// A row of up to threads * per_thread numbers. A thread holds groups of four neighbours.
template <int threads, int per_thread> struct RowValues {
    float x[per_thread];

    static __device__ int column(int i) { return (i / 4 * threads + RowThreads<threads>::rank()) * 4 + i % 4; }

    // Reads whole groups of four, multiplied by `factor`. The pitch of a row has room for them.
    __device__ void load(const float *row, int count, float factor) {
#pragma unroll
        for (int i = 0; i < per_thread; i += 4) {
            if (column(i) < count) {
                const float4 four = *reinterpret_cast<const float4 *>(row + column(i));
                // Always rounded in this way: otherwise exponents and the maximum could come from different scores.
                x[i] = __fmul_rn(four.x, factor), x[i + 1] = __fmul_rn(four.y, factor);
                x[i + 2] = __fmul_rn(four.z, factor), x[i + 3] = __fmul_rn(four.w, factor);
            } else {
                x[i] = x[i + 1] = x[i + 2] = x[i + 3] = 0;
            }
        }
    }
    template <class T> __device__ void store(T *row, int count) const {
#pragma unroll
        for (int i = 0; i < per_thread; i += 4)
            if (column(i) < count) {
                Four<T> four;
                for (int j = 0; j < 4; ++j)
                    four.x[j] = from_float<T>(x[i + j]);
                *reinterpret_cast<Four<T> *>(row + column(i)) = four;
            }
    }
};

// Returns a / b, for numbers >= 0. Uses 32 bits if they suffice: a 64-bit division takes about a hundred instructions.
__device__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
    if (((a | b) >> 32) == 0)
        return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
}

// The row that a group of threads works on.
struct ScoreRow {
    bool exists;        // false for threads beyond the last row, which run only for the block's barriers
    bool present;       // the row exists, and its query is inside the window
    std::int64_t index; // among all rows of the launch
    const TileItem *item;
    std::int64_t position; // of the query
    int first, visible;    // the query sees keys first … visible - 1, unless positions of packed rows hide some

    template <class Group> static __device__ ScoreRow of(const ScoreArguments &a) {
        ScoreRow row;
        const std::int64_t rows = a.tiles * a.queries;
        // In reverse order: the product before wrote the last rows last, and the next product reads the first rows
        // first. So both find their rows in the L2 cache.
        const std::int64_t block = gridDim.x - 1 - blockIdx.x;
        row.index = block * Group::rows_in_block + Group::row_in_block();
        row.exists = row.index < rows;
        if (!row.exists)
            row.index = rows - 1;
        const auto index = static_cast<unsigned>(row.index), queries = static_cast<unsigned>(a.queries);
        row.item = a.items + index / queries;
        const Tile &tile = row.item->tile;
        const std::int64_t place = tile.query + index % queries * a.query_stride;
        row.position = a.query_positions ? a.query_positions[row.index] : tile.segment_start + place;
        row.present = row.exists && row.position >= 0;
        row.first = 0;
        row.visible = a.keys;
        if (a.is_masked && !a.key_positions) {
            const std::int64_t low = place - a.bounds.before - tile.key, high = place + a.bounds.after - tile.key;
            const std::int64_t hidden = low <= 0 ? 0 : quotient(low + a.key_stride - 1, a.key_stride);
            const std::int64_t seen = high < 0 ? 0 : quotient(high, a.key_stride) + 1;
            row.first = static_cast<int>(hidden < a.keys ? hidden : a.keys);
            row.visible = static_cast<int>(seen < a.keys ? seen : a.keys);
        }
        return row;
    }

    // True if key j of the tile is not hidden, as far as that does not depend on the positions of packed rows.
    __device__ bool sees(int j) const { return j >= first && j < visible; }
    // True if the query may see key j of its tile, by the positions of packed rows.
    __device__ bool sees(const ScoreArguments &a, const std::int64_t *key_positions, int j) const {
        const std::int64_t key = key_positions[j];
        return key >= 0 && (!a.is_masked || a.bounds.has(position, key));
    }
};

template <class T, int threads, int per_thread>
__global__ void __launch_bounds__(block_threads) softmax_kernel(const SoftmaxArguments a) {
    using Group = RowThreads<threads>;
    const ScoreArguments &s = a.score;
    const ScoreRow row = ScoreRow::of<Group>(s);
    float *const scores = s.scores + row.index * s.pitch;

    RowValues<threads, per_thread> values;
    values.load(scores, s.keys, s.scale_log2);
    const bool by_position = s.key_positions && (s.is_masked || s.has_absent_rows);
    const std::int64_t *const key_positions =
        by_position ? s.key_positions + (row.item - s.items) * static_cast<std::int64_t>(s.keys) : nullptr;
    // An infinite score comes from a partial sum of Q . K that left the range of float32. Its row becomes NaN.
    float largest = -INFINITY, l = 0;
    bool has_keys = false;
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        const int j = values.column(i);
        if (!row.sees(j) || !row.present || (by_position && !row.sees(s, key_positions, j))) {
            values.x[i] = -INFINITY;
        } else {
            has_keys = true;
            if (!s.has_hidden)
                l = fmaf(values.x[i], 0.f, l);
        }
        largest = fmaxf(largest, values.x[i]);
    }
    largest = Group::max(largest);
    if (by_position)
        has_keys = Group::max(has_keys ? 1.f : 0.f) != 0.f;
    else // a thread may have no column of the row
        has_keys = row.present && row.visible > row.first;

    float2 *const state = a.state + row.item->state + row.position;
    const float2 before = a.is_fresh || !row.present ? make_float2(-INFINITY, 0.f) : *state;
    float m = fmaxf(largest, before.x);
    if (a.padding_keys > 0)
        m = fmaxf(m, 0.f);
    if (m <= before.x + lazy_maximum)
        m = before.x;
    const float shift = m == -INFINITY ? 0.f : m; // no key seen yet: 2^-inf = 0, and NaN stays NaN
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        values.x[i] = exp2f(values.x[i] - shift);
        l += values.x[i];
    }
    l = Group::sum(l);
    if (!row.exists)
        return;
    if (a.padding_keys > 0)
        l += a.padding_keys * exp2f(-m);
    if (a.is_complete) {
        if (l == 0.f)
            l = sum_of_none(has_keys);
        const float factor = inverse_sum(l);
#pragma unroll
        for (int i = 0; i < per_thread; ++i)
            values.x[i] *= factor;
        if (a.lse.data && Group::rank() == 0)
            *row_at<float>(a.lse, row.item->tile.batch, row.item->tile.head, row.position) =
                (m + log2_of_sum(l)) * ln_2;
    }
    values.store(reinterpret_cast<T *>(scores), s.keys);
    if (!row.present || a.is_complete)
        return;

    const float correction = before.x == -INFINITY ? 0.f : exp2f(before.x - m);
    if (!a.is_fresh && correction != 1.f) {
        float *const o = a.o + (row.item->state + row.position) * s.head_dim;
        for (int d = Group::rank() * 4; d < s.head_dim; d += threads * 4) {
            float4 four{};
            if (before.x != -INFINITY) // otherwise O holds nothing yet
                four = scaled(*reinterpret_cast<float4 *>(o + d), correction);
            *reinterpret_cast<float4 *>(o + d) = four;
        }
    }
    if (Group::rank() == 0) {
        const float sum = before.y * correction + l;
        *state = {m, sum == 0.f ? sum_of_none(has_keys || std::signbit(before.y)) : sum};
    }
}

template <class T, int threads, int per_thread>
__global__ void __launch_bounds__(block_threads) gradient_kernel(const GradientArguments a) {
    using Group = RowThreads<threads>;
    const ScoreArguments &s = a.score;
    const ScoreRow row = ScoreRow::of<Group>(s);
    float *const scores = s.scores + row.index * s.pitch;
    float *const d_scores = a.d_scores + row.index * s.pitch;

    RowValues<threads, per_thread> p, ds;
    p.load(scores, s.keys, s.scale_log2);
    ds.load(d_scores, a.d_scores ? s.keys : 0, 1);
    const Tile &tile = row.item->tile;
    float lse = 0, delta = 0;
    if (row.present) {
        const T *const out = row_at<T>(a.out, tile.batch, tile.head, row.position);
        const T *const d_out = row_at<T>(a.d_out, tile.batch, tile.head, row.position);
        for (int d = Group::rank(); d < s.head_dim; d += threads)
            delta += to_float(out[d]) * to_float(d_out[d]);
        lse = usable_lse(*row_at<float>(a.lse, tile.batch, tile.head, row.position)) * log2_e;
    }
    delta = Group::sum(delta);
    if (row.present && a.d_lse.data)
        delta -= *row_at<float>(a.d_lse, tile.batch, tile.head, row.position);

    const bool by_position = s.key_positions && (s.is_masked || s.has_absent_rows);
    const std::int64_t *const key_positions =
        by_position ? s.key_positions + (row.item - s.items) * static_cast<std::int64_t>(s.keys) : nullptr;
    const bool empty = !row.present || lse == -INFINITY;
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
        const int j = p.column(i);
        const bool hidden = empty || !row.sees(j) || (by_position && !row.sees(s, key_positions, j));
        p.x[i] = hidden ? 0.f : exp2f(p.x[i] - lse);
        ds.x[i] = hidden ? 0.f : p.x[i] * (ds.x[i] - delta) * a.scale;
    }
    __syncwarp(); // all rows of a warp have been read before any of them is overwritten
    if (!row.exists)
        return;
    if (a.wants_probabilities)
        p.store(reinterpret_cast<T *>(scores), s.keys);
    if (a.d_scores)
        ds.store(reinterpret_cast<T *>(d_scores), s.keys);
}

// Calls use with the number of threads, and of numbers a thread, for a row of `keys` numbers, as integral constants.
template <class Use> void for_row_length(int keys, Use use) {
    const auto with = [&]<int threads, int per_thread>() {
        use(std::integral_constant<int, threads>{}, std::integral_constant<int, per_thread>{});
    };
    if (keys <= 32)
        with.template operator()<8, 4>();
    else if (keys <= 128)
        with.template operator()<32, 4>();
    else if (keys <= 512)
        with.template operator()<32, 16>();
    else if (keys <= 1024)
        with.template operator()<32, 32>();
    else
        with.template operator()<64, 32>();
}

} // namespace

void softmax(annulus_dtype dtype, const SoftmaxArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        for_row_length(a.score.keys, [&](auto threads, auto per_thread) {
            launch("softmax", softmax_kernel<decltype(type), threads(), per_thread()>,
                   grid_for(a.score.tiles * a.score.queries, block_threads / threads()), stream, a);
        });
    });
}

void score_gradients(annulus_dtype dtype, const GradientArguments &a, cudaStream_t stream) {
    with_dtype(dtype, [&](auto type) {
        for_row_length(a.score.keys, [&](auto threads, auto per_thread) {
            launch("score_gradients", gradient_kernel<decltype(type), threads(), per_thread()>,
                   grid_for(a.score.tiles * a.score.queries, block_threads / threads()), stream, a);
        });
    });
}

} // namespace annulus
