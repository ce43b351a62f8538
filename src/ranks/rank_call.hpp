// SPDX-License-Identifier: Apache-2.0
// A call over several ranks: this rank's queries meet the keys of its own shard while rows of other shards are on their
// way, then each of those as it arrives, in one running softmax. Backward returns the gradients of the rows that came
// to their owners, who add them up in the order of the hops: the same bits every time.
#pragma once

#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"
#include "ranks/rank_memory.hpp"
#include "ranks/rank_plan.hpp"
#include "transport/transport.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace annulus {

// One rank's part of a call, prepared once. Used by one thread at a time.
class RankCall {
  public:
    // `plan` and `device` outlive it.
    RankCall(const RankPlan &plan, annulus_pass pass, const Engine &engine, Device &device, const Limits &limits);

    // Why the engine cannot serve the rank, or cannot take its tensors; null if it can. Rows that arrive from other
    // ranks suit every engine.
    const char *refusal() const { return refusal_; }
    const char *tensor_refusal(const CallTensors &tensors) const;
    std::int64_t row_alignment() const { return parts_.empty() ? 1 : parts_.front()->row_alignment(); }

    // Within the limit where the engine can keep it.
    std::size_t workspace_bytes() const { return bytes_; }

    // The tensors are those of the rank's shard; where the shard is empty they are not touched.
    void run(const CallTensors &tensors, void *workspace, void *stream, Transport &transport, MessageCopier &copier);

  private:
    class Run;

    void prepare(const Plan &plan, CallPart part, const Engine &engine, const Limits &limits);

    const RankPlan &plan_;
    const annulus_pass pass_;
    Device &device_;
    // Of the whole call, where the rank does not communicate; else with its own keys, then with those of each message,
    // round by round. None where the shard is empty.
    std::vector<std::unique_ptr<PreparedCall>> parts_;
    const char *refusal_ = nullptr;
    std::size_t bytes_ = 0, own_bytes_ = 0; // in all; of those what no part uses
    RankMemory memory_;
    std::vector<Batch> batches_, returns_; // of each round
};

} // namespace annulus
