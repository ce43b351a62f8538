// SPDX-License-Identifier: Apache-2.0
// The executable of one rank in a call over several ranks. It computes the sequences that the rank has alone, and the
// rank's shards of the sequences that several ranks share.
#pragma once

#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"
#include "ranks/rank_plan.hpp"
#include "ranks/shared_sequences.hpp"
#include "transport/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace annulus {

// How a rank reaches the other ranks. Both are null if an executable is prepared only to be asked about.
struct RankLinks {
    Transport *transport = nullptr;
    MessageCopier *copier = nullptr;
};

// Prepares an executable over several ranks. `plans`, `device` and what `links` points to outlive it. Throws
// Error(ANNULUS_ERROR_UNSUPPORTED) if the engine has no key scopes, even for a rank that shares no sequence: whether it
// does depends on the sequences of a call.
Preparation prepare_distributed(const RankPlan &plans, annulus_pass pass, const Engine &engine, Device &device,
                                const Limits &limits, const RankLinks &links);

class DistributedExecutable final : public Executable {
  public:
    DistributedExecutable(const RankPlan &plans, annulus_pass pass, const Engine &engine, Device &device,
                          const Limits &limits, const RankLinks &links);

    // Returns why the engine cannot serve the plans; null if it can.
    const char *refusal() const { return refusal_; }

    std::size_t workspace_bytes() const override;
    const char *tensor_refusal(const CallTensors &tensors) const override;
    std::int64_t row_alignment() const override;
    // Lets the transport make room for the messages.
    void reserve(void *stream) override;
    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override;

  private:
    const RankPlan &plans_;
    const annulus_pass pass_;
    const Engine &engine_;
    Device &device_;
    const Limits limits_;
    const RankLinks links_;
    SharedSequences shared_;
    std::unique_ptr<Executable> alone_; // over the sequences that the rank has alone; null if there are none
    const char *refusal_ = nullptr;
};

} // namespace annulus
