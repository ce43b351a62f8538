// SPDX-License-Identifier: Apache-2.0
// Initialises results before an engine's kernels run: softmax states of rows without keys, and rows of zeros. Also
// copies the branches to the device, for rows that are recomputed.
#include "cuda/results/block_rows.cuh"

#include <algorithm>
#include <cstring>

namespace annulus {

namespace {

__global__ void fill_kernel(float2 *state, std::int64_t rows, float2 value) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < rows)
        state[i] = value;
}

constexpr int cleared_rows = 16; // of a thread block

// Clears all heads of some rows, which are neighbours in memory. A thread writes one part of a row at a time.
template <class T, class Part>
__global__ void __launch_bounds__(block_threads)
    clear_outputs_kernel(const ClearArguments a, const BlockRows rows, unsigned parts) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * cleared_rows;
    const std::int64_t last = min(first + cleared_rows, rows.window.length);
    for (std::int64_t batch = blockIdx.y; batch < rows.batches; batch += gridDim.y)
        for (std::int64_t row = first; row < last; ++row)
            for (unsigned i = threadIdx.x; i < std::int64_t{rows.heads} * parts; i += block_threads) {
                const auto head = rows.first_head + static_cast<std::int32_t>(i / parts);
                const std::int64_t position = rows.window.start + row;
                T *const target = row_at<T>(a.rows, rows.first_batch + batch, head, position);
                reinterpret_cast<Part *>(target)[i % parts] = Part{};
                if (a.lse.data && i % parts == 0)
                    *row_at<float>(a.lse, rows.first_batch + batch, head, position) = -INFINITY;
            }
}

__global__ void __launch_bounds__(block_threads) store_kernel(const ANNULUS_GRID_CONSTANT WordsToStore some) {
    int begin = 0;
    for (int piece = 0; piece < some.pieces_count; ++piece) {
        const auto [target, end] = some.pieces[piece];
        for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += block_threads)
            target[i - begin] = some.words[i];
        begin = end;
    }
}

} // namespace

void fill_state(float2 *state, std::int64_t rows, float2 value, cudaStream_t stream) {
    launch("fill_state", fill_kernel, grid_for(rows, block_threads), stream, state, rows, value);
}

void clear_outputs(annulus_dtype dtype, const ClearArguments &a, cudaStream_t stream) {
    const BlockRows rows = query_rows(a.block);
    if (rows.count() == 0)
        return;
    const dim3 grid(grid_for(rows.window.length, cleared_rows).x,
                    static_cast<unsigned>(std::min(max_layers, rows.batches)));
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const auto clear = [&](auto part) {
            using Part = decltype(part);
            const auto parts = static_cast<unsigned>(a.head_dim * sizeof(T) / sizeof(Part));
            launch("clear_outputs", clear_outputs_kernel<T, Part>, grid, stream, a, rows, parts);
        };
        if (begin_at_multiples<T>(a.rows, sizeof(uint4)))
            clear(uint4{});
        else
            clear(T{});
    });
}

void ArrayStores::add_bytes(const void *source, std::size_t bytes, void *target) {
    auto *words = static_cast<std::uint32_t *>(target);
    const auto *from = static_cast<const std::byte *>(source);
    for (auto left = static_cast<std::int64_t>(bytes / sizeof *words); left > 0;) {
        if (pending_.words_count == WordsToStore::max_words || pending_.pieces_count == WordsToStore::max_pieces)
            launch();
        const auto count =
            static_cast<int>(std::min<std::int64_t>(left, WordsToStore::max_words - pending_.words_count));
        if (from)
            std::memcpy(pending_.words + pending_.words_count, from, count * sizeof *words);
        else
            std::fill_n(pending_.words + pending_.words_count, count, 0u);
        pending_.words_count += count;
        pending_.pieces[pending_.pieces_count++] = {words, pending_.words_count};
        words += count;
        from += from ? count * sizeof *words : 0;
        left -= count;
    }
}

void ArrayStores::launch() {
    if (pending_.words_count == 0)
        return;
    annulus::launch("store_words", store_kernel, 1, stream_, pending_);
    pending_.words_count = pending_.pieces_count = 0;
}

} // namespace annulus
