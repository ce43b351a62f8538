// SPDX-License-Identifier: Apache-2.0
// What an engine does: it prepares an executable for a plan once, which then runs again and again.
#pragma once

#include "core/dtype_number.hpp"
#include "core/pattern.hpp"
#include "core/plan.hpp"
#include "core/sequences.hpp"
#include "core/summed_rows.hpp"
#include "engine/device.hpp"

#include <annulus/config.h>
#include <annulus/context.h>
#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace annulus {

// The checked tensors of one call, of the shapes that annulus/attention.h gives. Problem::gradients gives the dtypes of
// the gradients.
//
// - Forward has q, k, v, out and lse. `lse` is null if the caller does not want LSE.
// - Backward has all but mass. `d_lse` may be null.
// - Attention mass has q, k, lse and mass.
struct CallTensors {
    annulus_tensor q, k, v, out;
    const annulus_tensor *lse = nullptr;
    annulus_tensor d_out{};
    const annulus_tensor *d_lse = nullptr;
    annulus_tensor d_q{}, d_k{}, d_v{};
    annulus_tensor mass{}; // [B, H, N]
};

// The keys that an executable attends to. A rank that shares a sequence has several executables: one for its own keys,
// then some for keys that it receives from other ranks. They add to the same partial results.
enum class KeyScope {
    all_keys,   // every key; there are no partial results
    own_keys,   // the keys at the queries' positions; runs first and sets the partial results
    other_keys, // keys at other positions; adds to the partial results
    last_keys   // as other_keys, and runs last: the engine may write rows of the outputs that it has finished
};
constexpr bool has_other_keys(KeyScope scope) {
    return scope == KeyScope::other_keys || scope == KeyScope::last_keys;
}

// What the executables of several key scopes add up. Elements are float64 for float64 tensors, else float32.
struct PartialResults {
    void *o = nullptr; // forward: [B, H, rows, D], not normalised
    // [B, H, rows, 2], in a form of the engine's own; backward has all rows
    void *softmax_state = nullptr;
    void *d_q = nullptr; // backward: [B, H, rows, D]
    void *d_k = nullptr; // backward: [B, G, rows, D], of the executable's keys
    void *d_v = nullptr; // the same
    // The `rows` of o, of forward's softmax_state and of d_q; then those of d_k and d_v. Null: all rows.
    const SummedRows *summed_queries = nullptr, *summed_keys = nullptr;
};

// The rows of a shard that have partial results. None: all rows.
struct ShardSums {
    std::optional<SummedRows> queries; // of O, of forward's softmax state, and of dQ
    std::optional<SummedRows> keys;    // of dK and dV
};

// True if a gradient can be added up in the caller's tensor: the problem has the dtype of sums, and the tensor's old
// values do not count. A float32 gradient of 16-bit tensors is added up elsewhere: an estimate knows one dtype for all
// gradients, and a call may have another one for each.
inline bool holds_sums(const Problem &problem, const GradientTarget &target) {
    return problem.dtype == sum_dtype(problem.dtype) && !target.adds;
}

// What an executable may use, from the context and its config.
struct Limits {
    int threads = 1;                   // CPU threads
    std::uint64_t workspace_limit = 0; // bytes; 0: the engine's own choice
    bool allow_tf32 = false;
    bool operator==(const Limits &) const = default;

    // Returns the limits of an engine beside which `bytes` of the workspace are used; at least 1 byte stays.
    Limits without(std::size_t bytes) const {
        Limits left = *this;
        if (workspace_limit != 0)
            left.workspace_limit = workspace_limit > bytes ? workspace_limit - bytes : 1;
        return left;
    }
};

// One pass of one plan over one key scope, with all decisions made. run() allocates nothing on the host but CPU
// threads. One thread uses it at a time.
class Executable {
  public:
    virtual ~Executable() = default;

    // Returns the bytes of workspace that run() uses. A call fails if they are more than the config's limit.
    virtual std::size_t workspace_bytes() const = 0;
    // Returns why run() cannot take these tensors; null if it can.
    virtual const char *tensor_refusal(const CallTensors &) const { return nullptr; }
    // Returns the alignment, in bytes, that the rows of every tensor must have. With it, run() takes all tensors that
    // have no stride of 0 and no stride of 2^40 bytes or more.
    virtual std::int64_t row_alignment() const { return 1; }

    // Gets what a run needs beside its workspace, before anything is written. Only executables over several ranks do.
    virtual void reserve(void *) {}

    // True if executables of other key scopes may run at the same time, on other streams. Then begin() and
    // let_begin_early() have an effect. Each executable needs a workspace of its own. With received keys, run()
    // launches, and so does backward's run_rest(), unless Problem::gradients.only_v. Then run_rest() does nothing in
    // any scope.
    virtual bool runs_beside_others() const { return false; }
    // Does ahead of run(), with its arguments, what does not wait for other executables. So launches of run() and
    // run_rest() can follow those of other executables without a gap. Nothing else may use the workspace until
    // run_rest() has returned. A caller calls it before every run() of an executable, also after a call that failed, or
    // never.
    //
    // - It writes to the workspace what the launches read.
    // - It sets partial results to 0 to which the launches add.
    // - own_keys: it sets backward's softmax_state, which other scopes read.
    virtual void begin(const CallTensors &, const PartialResults &, void *, void *) {}
    // Lets the first launch of the next run() or run_rest() begin while the launch before it on the stream still runs.
    // That launch must be of an executable that runs beside others, and the stream must not have waited since.
    virtual void let_begin_early() {}

    // Runs. The tensors have the rows of the plan's windows. `workspace` is aligned to Workspace::alignment. `stream`
    // is a cudaStream_t on CUDA and null on a CPU.
    //
    // With a key scope other than all_keys:
    //
    // - K and V of `tensors` are the rows of the executable's keys.
    // - run() sets d_k and d_v of `partial`; with own_keys run_rest() may do that. own_keys sets its d_q, o and
    //   softmax_state. The other scopes add to d_q and o, and may change softmax_state in forward.
    // - Anything may write to the workspace between two runs, unless begin() was called.
    // - own_keys may write rows of the outputs to which no other scope and no other rank adds.
    virtual void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) = 0;
    // Does the work of backward that run() left for later, because no other rank waits for it. Takes run()'s arguments.
    //
    // - own_keys: may be gradients of the keys. Other executables may have used the workspace since run(), unless
    //   begin() was called.
    // - other_keys, last_keys: may be gradients of the queries. Nothing has used the workspace since run().
    virtual void run_rest(const CallTensors &, const PartialResults &, void *, void *) {}
    // Writes the partial results to the rows of the outputs that run() has not written. Only own_keys has it; called
    // when all scopes have run.
    virtual void write_unfinished(const CallTensors &tensors, const PartialResults &partial, void *stream);
};

// An engine's answer: an executable, or the reason why it cannot serve the plan.
struct Preparation {
    std::unique_ptr<Executable> executable;
    const char *refusal = nullptr; // static text
};

struct Engine {
    annulus_engine id;
    annulus_device device;
    bool has_key_scopes; // if not, its only key scope is all_keys
    // `pass` is forward or backward; `device` is one of the engine's kind and outlives the executable.
    Preparation (*prepare)(const Plan &plan, annulus_pass pass, KeyScope scope, Device &device, const Limits &limits);
    // Writes the results of queries that attend to no key to all rows of a problem: O = 0, LSE = -infinity,
    // gradients = 0. Gradients that a call adds to stay as they are.
    void (*clear)(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &device,
                  const Limits &limits, void *stream);
    // Prepares one executable over several sequences. Null if running one sequence after the other is as fast.
    Preparation (*prepare_sequences)(const SequencePlans &plans, annulus_pass pass, Device &device,
                                     const Limits &limits) = nullptr;
    // Returns which rows of a shard have partial results. The executable for the own keys writes all other rows of the
    // outputs. `shard` is its plan; the workspace limit does not matter. Null if all rows have partial results.
    ShardSums (*summed_rows)(const Plan &shard, annulus_pass pass, Device &device, const Limits &limits) = nullptr;
    // True if backward has no softmax_state, and no partial results of a gradient whose tensor can hold its sums
    // (holds_sums()).
    bool sums_in_place = false;
};

// Returns "unknown" if no engine has that number.
const char *engine_name(annulus_engine engine);

} // namespace annulus
