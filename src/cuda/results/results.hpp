// SPDX-License-Identifier: Apache-2.0
// From float32 results to the caller's tensors, for every engine on a GPU. All run on `stream`, none synchronises.
//
// A block's state, its O and its gradients lie [batch, head, position of its window]. The softmax state is in units of
// log2 (softmax_state.hpp); O is not normalised.
#pragma once

#include "core/plan.hpp"
#include "cuda/device/device_rows.hpp"
#include "cuda/results/softmax_state.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace annulus {

// A part of a problem: heads and batch entries, with the queries and the keys that are touched.
struct Block {
    std::int64_t first_batch = 0, batches = 0;
    std::int32_t first_head = 0, heads = 0;
    Window queries, keys;
};

// Sets all rows of a softmax state.
void fill_state(float2 *state, std::int64_t rows, float2 value, cudaStream_t stream);

// Pieces of arrays, in the 4 KiB of a kernel's arguments.
struct WordsToStore {
    struct Piece {
        std::uint32_t *target;
        int end; // of its words
    };
    static constexpr int most_words = 896, most_pieces = 24;
    int words_count, pieces_count;
    Piece pieces[most_pieces];
    std::uint32_t words[most_words];
};

// Copies arrays from the host to device memory, in words of four bytes, through kernel arguments: a captured graph
// keeps them. As many together as fit into those of a launch.
class ArrayStores {
  public:
    explicit ArrayStores(cudaStream_t stream) : stream_(stream) {}

    // The source may go at once.
    template <class T> void add(const T *source, std::size_t count, T *target) {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint32_t) == 0);
        add_bytes(source, count * sizeof(T), target);
    }
    // What has been added and not launched yet.
    void launch();

  private:
    void add_bytes(const void *source, std::size_t bytes, void *target);

    cudaStream_t const stream_;
    WordsToStore some_{};
};
template <class T> void store_array(const T *source, std::size_t count, T *target, cudaStream_t stream) {
    ArrayStores stores(stream);
    stores.add(source, count, target);
    stores.launch();
}

// A sequence of several in the rows of a call.
struct RowSequence {
    int batch, start, length; // start: row of its position 0
};

// What the results of a row depend on, for those rows that must be computed one by one (nonfinite_rows.cuh).
struct RowContext {
    const BranchPlan *branches; // of several sequences those of the longest
    std::int32_t branch_count;
    bool keys_once;               // a key of several branches counts once; not with several sequences
    const RowSequence *sequences; // null: all rows are one
    std::int32_t sequence_count;
    int *has_nonfinite; // 0 before; becomes 1 where a row must be computed again. Null: none is noted
    std::int32_t heads_per_kv_head, head_dim;
    float scale;
    Window queries, keys;
    DeviceRows q, k, v, out, d_out, lse, d_lse;
};

// From the state of a block to the caller's O and LSE, but for finished rows.
struct OutputArguments {
    Block block;
    const float2 *state;
    float *o;
    DeviceRows out, lse; // lse.data may be null
    RowContext context;
};
void write_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
// The same, quicker where most rows are finished.
void write_unfinished_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
// Compute again those rows that have a NaN, if there are any: in the caller's O, with a state of finished rows only;
// in the caller's O where the row of `o` that it was written from has one; in `o` itself, where without `has_nonfinite`
// all rows are looked at.
void recompute_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
void recompute_outputs_of_partial(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
void recompute_partial_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);

// Zeros in the caller's rows of a block's queries, and -inf in their LSE. Without a state keys have the windows and
// heads of queries: it clears the rows of dK and dV as well.
struct ClearArguments {
    Block block;
    std::int32_t head_dim;
    DeviceRows rows, lse; // lse.data may be null
};
void clear_outputs(annulus_dtype dtype, const ClearArguments &arguments, cudaStream_t stream);

// A block's float32 gradients.
struct PartialGradients {
    float *d_q, *d_k, *d_v;
};

// From a block's float32 gradients to the caller's; a null pointer for dQ or dV leaves that side out, one for dK dK.
struct GradientOutputArguments {
    Block block;
    PartialGradients partial;
    DeviceRows d_q, d_k, d_v;
    GradientTargets targets;
    RowContext context;
};
// `dtype` is that of the inputs.
void write_gradients(annulus_dtype dtype, const GradientOutputArguments &arguments, cudaStream_t stream);
// Compute again those rows that have a NaN: in the caller's gradients, whose targets are plain, and in the partial ones
// of the sides that are there, where without `has_nonfinite` all rows are looked at.
void recompute_gradients(annulus_dtype dtype, const GradientOutputArguments &arguments, bool of_queries, bool of_keys,
                         cudaStream_t stream);
void recompute_partial_gradients(annulus_dtype dtype, const GradientOutputArguments &arguments, cudaStream_t stream);

} // namespace annulus
