// SPDX-License-Identifier: Apache-2.0
// One call of a pass through the C API: from checked arguments to the executable that computes it. On several ranks the
// ranks first agree on what they are about to compute.
#pragma once

#include "call/call_memory.hpp"
#include "call/comm.hpp"
#include "call/context.hpp"
#include "core/sequences.hpp"
#include "engine/engine.hpp"

#include <annulus/attention.h>

#include <cstdint>
#include <optional>

namespace annulus {

// The arguments of a pass, each checked by itself.
struct Arguments {
    CallProblem problem;
    CallTensors tensors;
};

// Keeps the context and its communicator in use as long as it lives.
class Invocation {
  public:
    // Throws if the context or its communicator cannot be used now.
    Invocation(annulus_context *context, annulus_pass pass);

    const annulus_context &context() const { return context_; }

    // Checks what concerns several arguments, then runs the pass. Nothing is written before all checks have passed.
    void run(const Arguments &arguments);

    // Tells the other ranks, if they wait for this one, that it does not take part. For a call that failed.
    void decline(const char *reason) const;

  private:
    struct ReadyRank;

    void run_alone(const Arguments &arguments);
    void run_with_ranks(const Arguments &arguments);
    // Agrees with the other ranks on the shards and prepares for them. First the rank prepares for the shards that it
    // knows, and one all-gather compares what all ranks know and intend. If the shards turn out to be others, the rank
    // prepares again, and a second all-gather tells whether every rank could.
    void agree_and_prepare(std::optional<ReadyRank> &ready, const Arguments &arguments);
    // Runs an executable. If that fails, outputs may have been written, and the error's status says so.
    void execute(Executable &executable, const CallTensors &tensors, void *workspace) const;
    // Returns collective(transport), an all-gather in which the other ranks hear of this one.
    template <class Collective> auto gather(const Collective &collective);
    bool can_gather() const;

    const ContextUse use_;
    annulus_context &context_;
    std::optional<CommUse> comm_; // none on one rank
    const annulus_pass pass_;
    bool has_told_ranks_ = false; // the other ranks do not wait to hear of this one
};

} // namespace annulus
