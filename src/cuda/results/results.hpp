// SPDX-License-Identifier: Apache-2.0
// Brings float32 results to the caller's tensors, for every GPU engine. All functions run on `stream`; none
// synchronises.
//
// A block's state, its O and its gradients are indexed [batch, head, position in its window]. The softmax state is in
// units of log2 (softmax_state.hpp). O is not normalised.
#pragma once

#include "core/plan.hpp"
#include "cuda/device/device_rows.hpp"
#include "cuda/results/device_summed_rows.hpp"
#include "cuda/results/softmax_state.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace annulus {

// A part of a problem: some batch entries and heads, with windows of their queries and keys.
struct Block {
    std::int64_t first_batch = 0, batches = 0;
    std::int32_t first_head = 0, heads = 0;
    Window queries, keys;
};

// Sets all rows of a softmax state to `value`.
void fill_state(float2 *state, std::int64_t rows, float2 value, cudaStream_t stream);

// Pieces of arrays, which fit into the 4 KiB of a kernel's arguments.
struct WordsToStore {
    struct Piece {
        std::uint32_t *target;
        int end; // the end of its words in `words`
    };
    static constexpr int max_words = 896, max_pieces = 24;
    int words_count, pieces_count;
    Piece pieces[max_pieces];
    std::uint32_t words[max_words];
};

// Copies arrays from the host to device memory, in words of four bytes, through kernel arguments, so that a captured
// graph contains them. Each launch copies as much as fits into its arguments. Several arrays take one launch.
class ArrayStores {
  public:
    explicit ArrayStores(cudaStream_t stream) : stream_(stream) {}

    // Copies the source at once; it may be freed after the call.
    template <class T> void add(const T *source, std::size_t count, T *target) {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint32_t) == 0);
        add_bytes(source, count * sizeof(T), target);
    }
    // Sets an array of counters to 0.
    void add_zeros(std::size_t count, unsigned *target) { add_bytes(nullptr, count * sizeof *target, target); }
    // Launches the copies of what has been added since the last launch.
    void launch();

  private:
    // `source` may be null: then the words are 0.
    void add_bytes(const void *source, std::size_t bytes, void *target);

    cudaStream_t const stream_;
    WordsToStore pending_{};
};

// One of several sequences in the rows of a call.
struct RowSequence {
    int batch, start, length; // start: the row of position 0
};

// The inputs of rows that must be computed one by one (nonfinite_rows.cuh).
struct RowContext {
    const BranchPlan *branches; // with several sequences, the branches of the longest one
    std::int32_t branch_count;
    bool keys_count_once;         // a key that is in several branches counts once; false with several sequences
    const RowSequence *sequences; // null: all rows are one sequence
    std::int32_t sequence_count;
    int *has_nonfinite; // 0 at first; kernels set it to 1 if a row must be recomputed. Null: it is not noted
    std::int32_t heads_per_kv_head, head_dim;
    float scale;
    Window queries, keys;
    DeviceRows q, k, v, out, d_out, lse, d_lse;
};

// Writes the caller's O and LSE from the state of a block, except for finished rows. Rows without a state are finished.
struct OutputArguments {
    Block block;
    const float2 *state;
    float *o;
    DeviceRows out, lse; // lse.data may be null
    RowContext context;
    DeviceSummedRows summed{nullptr}; // the rows that `state` and `o` have
};
void write_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
// Does the same, faster if most rows are finished.
void write_unfinished_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
// Recompute the rows that have a NaN, if there are any. recompute_outputs() does it for rows of the caller's O, with a
// state only for finished rows. recompute_outputs_of_partial() does it for rows of the caller's O whose row in `o` has
// a NaN. recompute_partial_outputs() does it in `o` itself. There all rows are checked if `has_nonfinite` is null.
void recompute_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
void recompute_outputs_of_partial(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);
void recompute_partial_outputs(annulus_dtype dtype, const OutputArguments &arguments, cudaStream_t stream);

// Sets the caller's rows of a block's queries to zero, and their LSE to -inf. It also clears rows of dK and dV: the
// block's `queries` and heads are then the keys' window and heads.
struct ClearArguments {
    Block block;
    std::int32_t head_dim;
    DeviceRows rows, lse; // lse.data may be null
};
void clear_outputs(annulus_dtype dtype, const ClearArguments &arguments, cudaStream_t stream);

// Float32 gradients of a block.
struct PartialGradients {
    float *d_q, *d_k, *d_v;
};

// Writes a block's float32 gradients to the caller's tensors; `partial` must have all rows. Null for d_q leaves out dQ,
// for d_v dK and dV, and for d_k only dK.
struct GradientOutputArguments {
    Block block;
    PartialGradients partial;
    DeviceRows d_q, d_k, d_v;
    GradientTargets targets;
    RowContext context;
    DeviceSummedRows summed_queries{nullptr}, summed_keys{nullptr}; // the rows that dQ, and dK and dV of `partial` have
};
// `dtype` is the dtype of the inputs.
void write_gradients(annulus_dtype dtype, const GradientOutputArguments &arguments, cudaStream_t stream);
// Recompute the rows that have a NaN: in the caller's gradients, whose targets must be plain, or in the partial
// gradients that are not null. In partial gradients all rows are checked if `has_nonfinite` is null.
void recompute_gradients(annulus_dtype dtype, const GradientOutputArguments &arguments, bool recomputes_d_q,
                         bool recomputes_d_kv, cudaStream_t stream);
void recompute_partial_gradients(annulus_dtype dtype, const GradientOutputArguments &arguments, cudaStream_t stream);

} // namespace annulus
