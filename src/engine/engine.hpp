// SPDX-License-Identifier: Apache-2.0
// What an engine owes: prepare a call once, so that it can run again and again.
#pragma once

#include "core/pattern.hpp"
#include "core/plan.hpp"
#include "core/sequences.hpp"
#include "engine/device.hpp"

#include <annulus/config.h>
#include <annulus/context.h>
#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace annulus {

// Checked tensors of one call, of the shapes that annulus/attention.h says; gradients as Problem::gradients says.
// Forward has q, k, v, out, and lse, which is null where LSE is not wanted. Backward has all; `d_lse` may be null.
struct CallTensors {
    annulus_tensor q, k, v, out;
    const annulus_tensor *lse = nullptr;
    annulus_tensor d_out{};
    const annulus_tensor *d_lse = nullptr;
    annulus_tensor d_q{}, d_k{}, d_v{};
};

// Which part of a call an engine prepares. A rank's call has several parts: its queries against its own keys, then
// against the keys of other ranks, some at a time. What they have of the results meanwhile are partial results.
enum class CallPart {
    whole,      // all keys that there are; no partial results
    own_keys,   // the keys at the queries' own positions; the first part to run: sets the partial results
    other_keys, // keys elsewhere; adds to the partial results
    last_keys   // the same, after which nothing is added: the engine may write rows that it has finished
};
constexpr bool is_of_other_keys(CallPart part) {
    return part == CallPart::other_keys || part == CallPart::last_keys;
}

// Of the type of accumulation: float64 for float64 tensors, else float32.
struct PartialResults {
    void *o = nullptr;             // forward: [B, H, Nq, D], not normalised
    void *softmax_state = nullptr; // forward: [B, H, Nq, 2], in a form of the engine's own
    void *d_q = nullptr;           // backward: [B, H, Nq, D]
    void *d_k = nullptr;           // backward: [B, G, rows, D], of the part's own keys
    void *d_v = nullptr;           // the same
};

// What a call may use, from the context and its config.
struct Limits {
    int threads = 1;                   // of a CPU
    std::uint64_t workspace_limit = 0; // bytes; 0: the engine's own choice
    bool allow_tf32 = false;
    bool operator==(const Limits &) const = default;
};

// A pass of a plan, or a part of it, with all decisions made. When it runs again it allocates nothing on the host but a
// CPU's threads. Used by one thread at a time.
class PreparedCall {
  public:
    virtual ~PreparedCall() = default;

    // Bytes of workspace that run() uses. Above a limit that is set, the call fails.
    virtual std::size_t workspace_bytes() const = 0;
    // Why it cannot take these tensors; null if it can.
    virtual const char *tensor_refusal(const CallTensors &) const { return nullptr; }
    // Bytes: it takes all tensors whose rows begin at multiples of so many and which have no stride of 0 or of 2^40
    // bytes or more.
    virtual std::int64_t row_alignment() const { return 1; }

    // The plan's windows are those of the tensors. `workspace` is aligned to Workspace::alignment; all parts of a call
    // have the same one, to which nothing else writes meanwhile. `stream` is null on a CPU; on CUDA a cudaStream_t.
    //
    // Of a part, K and V are those of its keys; d_k and d_v of the partial results are set, d_q and forward's are set
    // by own_keys and added to by the others. The part with own_keys may write rows of the outputs to which no other
    // part and no other rank adds.
    virtual void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) = 0;
    // What run() of a part of backward has left for later, if anything, because no other rank waits for it. Of own_keys
    // that may be gradients of the keys; other parts may have used the workspace meanwhile. Of parts with other keys it
    // may be gradients of the queries; nothing has used the workspace meanwhile. Arguments are those of run().
    virtual void run_rest(const CallTensors &, const PartialResults &, void *, void *) {}
    // Of the part with own_keys, when all have run: from the partial results, those of its own keys, to the outputs
    // that it has not written.
    virtual void finish(const CallTensors &tensors, const PartialResults &partial, void *stream);
};

// What an engine answers: a call, or the reason why it cannot serve the plan. Static text.
struct Preparation {
    std::unique_ptr<PreparedCall> call;
    const char *refusal = nullptr;
};

struct Engine {
    annulus_engine id;
    annulus_device device;
    bool has_parts; // else it computes whole calls only
    // `device`, one of the engine's kind, outlives the call.
    Preparation (*prepare)(const Plan &plan, annulus_pass pass, CallPart part, Device &device, const Limits &limits);
    // Writes what rows get that attend to nothing, to all rows of a problem: O 0, LSE -infinity, gradients 0 but where
    // they are added to.
    void (*clear)(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &device,
                  const Limits &limits, void *stream);
    // A whole call over several sequences. Null: one after the other is as fast as it gets.
    Preparation (*prepare_sequences)(const SequencePlans &plans, annulus_pass pass, Device &device,
                                     const Limits &limits) = nullptr;
};

// The engines' entries, defined in their own rooms.
extern const Engine reference_engine;
extern const Engine cpu_engine;
extern const Engine gemm_engine;  // only in the CUDA plugin
extern const Engine fused_engine; // only in a CUDA plugin built for Hopper
extern const Engine mma_engine;   // only in a CUDA plugin built for GPUs with tensor cores

inline constexpr std::size_t most_engines_of_device = 3;

// Those of a kind of device that there is, in the order in which `auto` tries them.
std::span<const Engine *const> engines_of(annulus_device device);

// Throws Error(ANNULUS_ERROR_UNSUPPORTED) where there is no such engine for the device.
const Engine &find_engine(annulus_device device, annulus_engine id);

// "unknown" where there is none of that number.
const char *engine_name(annulus_engine engine);

} // namespace annulus
