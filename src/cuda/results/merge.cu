// SPDX-License-Identifier: Apache-2.0
// Merges results on a GPU; each thread has eight columns. The threads of a row are in one warp. They write the row's
// LSE only after all of them have read the parts' LSEs, because the output may be one of the parts. Each column is
// written by the thread that read it.
#include "cuda/device/kernel_common.cuh"
#include "cuda/results/device_functions.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace annulus {

namespace {

constexpr int columns_of_thread = 8;
constexpr std::int64_t max_layers = 65535; // limit of CUDA for the second dimension of a grid
constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T> struct alignas(16) Columns { T x[columns_of_thread]; };

template <class T> __device__ Columns<T> read_columns(const T *source, bool aligned) {
    if (aligned)
        return *reinterpret_cast<const Columns<T> *>(source);
    Columns<T> columns;
    for (int i = 0; i < columns_of_thread; ++i)
        columns.x[i] = source[i];
    return columns;
}

template <class T> __device__ void write_columns(const Columns<T> &columns, T *target, bool aligned) {
    if (aligned)
        *reinterpret_cast<Columns<T> *>(target) = columns;
    else
        for (int i = 0; i < columns_of_thread; ++i)
            target[i] = columns.x[i];
}

// A thread's columns of a row while parts are added: O is sum / weights, and LSE is largest + log(weights).
struct MergedRow {
    float largest = -infinity, weights = 0;
    float sum[columns_of_thread] = {};

    __device__ float lse() const { return largest == -infinity ? largest : largest + logf(weights); }
    __device__ float factor() const { return largest == -infinity ? 1.f : 1 / weights; }
};

template <class T>
__device__ MergedRow add_parts(const MergeWork &work, std::int64_t b, std::int64_t h, std::int64_t n, int column,
                               bool aligned) {
    MergedRow row;
    bool is_sound = true; // no LSE is NaN or +infinity
    for (int i = 0; i < work.count; ++i) {
        const float lse = *work.lses[i].at<float>(b, h, n);
        row.largest = fmaxf(row.largest, lse);
        is_sound = is_sound && lse < infinity;
    }
    if (!is_sound) {
        row.largest = 0;
        row.weights = std::numeric_limits<float>::quiet_NaN();
        return row;
    }
    for (int i = 0; i < work.count; ++i) {
        const float lse = *work.lses[i].at<float>(b, h, n);
        if (lse == -infinity)
            continue;
        const float weight = expf(lse - row.largest);
        row.weights += weight;
        const Columns<T> part = read_columns(work.outs[i].at<T>(b, h, n) + column, aligned);
        for (int j = 0; j < columns_of_thread; ++j)
            row.sum[j] += weighted(weight, to_float(part.x[j]));
    }
    return row;
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    merge_kernel(const ANNULUS_GRID_CONSTANT MergeWork work, int threads_of_row, bool aligned) {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % threads_of_row * columns_of_thread;
    const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * (block_threads / 32) + threadIdx.x / 32;
    const std::int64_t n = warp * (32 / threads_of_row) + lane / threads_of_row;
    const bool has_columns = n < work.rows && column < work.head_dim;
    for (std::int64_t layer = blockIdx.y; layer < work.batches * work.heads; layer += gridDim.y) {
        const std::int64_t b = layer / work.heads, h = layer % work.heads;
        MergedRow row;
        if (has_columns)
            row = add_parts<T>(work, b, h, n, column, aligned);
        __syncwarp();
        if (!has_columns)
            continue;
        Columns<T> columns;
        for (int j = 0; j < columns_of_thread; ++j)
            columns.x[j] = from_float<T>(row.sum[j] * row.factor());
        write_columns(columns, work.out.at<T>(b, h, n) + column, aligned);
        if (work.lse.data && column == 0)
            *work.lse.at<float>(b, h, n) = row.lse();
    }
}

// True if groups of eight columns begin at a multiple of 16 bytes in every row.
template <class T> bool is_aligned(const MergeRows &rows) {
    const auto strides = static_cast<std::uintptr_t>(rows.batch | rows.head | rows.row) * sizeof(T);
    return (strides | reinterpret_cast<std::uintptr_t>(rows.data)) % alignof(Columns<T>) == 0;
}

} // namespace

void merge_on_cuda(const MergeWork &work, void *stream) {
    const auto threads_of_row =
        static_cast<int>(std::bit_ceil(static_cast<unsigned>(work.head_dim / columns_of_thread)));
    dim3 grid = grid_for(work.rows, std::int64_t{block_threads / 32} * (32 / threads_of_row));
    grid.y = static_cast<unsigned>(std::min(max_layers, work.batches * work.heads));
    with_dtype(work.dtype, [&](auto type) {
        using T = decltype(type);
        const bool aligned = is_aligned<T>(work.out) && std::all_of(work.outs, work.outs + work.count, is_aligned<T>);
        launch("merge", merge_kernel<T>, grid, static_cast<cudaStream_t>(stream), work, threads_of_row, aligned);
    });
}

} // namespace annulus
