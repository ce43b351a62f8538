// SPDX-License-Identifier: Apache-2.0
// A rank's call of a sequence that several ranks share: those of its shards, whose messages travel together.
#pragma once

#include "engine/sequence_calls.hpp"
#include "ranks/rank_plans.hpp"
#include "ranks/shard_call.hpp"

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace annulus {

// Prepared once. Used by one thread at a time.
class RankCall {
  public:
    // `shared` and `device` outlive it.
    RankCall(const RankPlans::Shared &shared, annulus_pass pass, const Engine &engine, Device &device,
             const Limits &limits);

    // As ShardCall's; of `rows`, the rank's among those of all.
    const char *refusal() const;
    const char *tensor_refusal(const CallTensors &tensors, const Problem &rows) const;
    std::int64_t row_alignment() const;
    std::size_t workspace_bytes() const { return bytes_; }
    // What an exchange sends to each rank at most, in bytes as add_message() counts them.
    const std::vector<std::size_t> &sends() const { return sends_; }

    // The tensors are those of all of the rank's rows.
    void run(const CallTensors &tensors, const Problem &rows, void *workspace, void *stream, Transport &transport,
             MessageCopier &copier);

  private:
    class Run;

    // Of a round: what the shards send and receive, and of it what goes to and comes from other ranks.
    struct Exchange {
        ShardBatch of_shards;
        Batch travelling;
    };

    // Of one of the shards: which rank has which is the same in all.
    const Schedule &schedule() const { return shared_.shards.front().plan.schedule(); }
    void find_sends();
    // The shard's part of the tensors.
    void place(std::size_t shard, const CallTensors &tensors, const Problem &rows,
               std::optional<SequenceTensors> &of_shard) const;

    const RankPlans::Shared &shared_;
    const annulus_pass pass_;
    Device &device_;
    std::deque<ShardCall> calls_; // of the shards
    std::size_t bytes_ = 0;
    std::vector<std::size_t> sends_;
    std::vector<Exchange> rows_, gradients_; // of each round
    // Of a run: made here, since once the ranks have agreed nothing is allocated.
    std::deque<std::optional<SequenceTensors>> tensors_;
    std::deque<std::optional<ShardCall::Run>> runs_;
};

} // namespace annulus
