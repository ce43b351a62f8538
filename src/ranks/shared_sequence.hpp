// SPDX-License-Identifier: Apache-2.0
// What one rank does for a sequence that it shares with other ranks. The messages of its shards travel together.
#pragma once

#include "engine/sequence_executables.hpp"
#include "ranks/rank_plan.hpp"
#include "ranks/shard_executable.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace annulus {

// Prepared once. One thread uses it at a time.
class SharedSequence {
  public:
    // `shared` and `device` outlive it.
    SharedSequence(const RankPlan::Shared &shared, annulus_pass pass, const Engine &engine, Device &device,
                   const Limits &limits);

    // The same as ShardExecutable's, over all of the rank's shards. `rows` has the windows of the tensors.
    const char *refusal() const;
    const char *tensor_refusal(const CallTensors &tensors, const Problem &rows) const;
    std::int64_t row_alignment() const;
    std::size_t workspace_bytes() const { return bytes_; }
    // Returns the most bytes that one exchange sends to each rank that gets any, as add_message() counts them.
    const std::map<int, std::size_t> &sent_bytes() const { return sent_bytes_; }

    // `tensors` have all of the rank's rows.
    void run(const CallTensors &tensors, const Problem &rows, void *workspace, void *stream, Transport &transport,
             MessageCopier &copier);

  private:
    class Rounds;

    // What one round sends and receives.
    struct Exchange {
        ShardBatch batch; // every message, also a message between two shards of this rank
        Batch travel;     // the messages from and to other ranks
    };
    // One of the rank's shards in a round in which it has messages, and the round's index among the shard's own.
    struct ShardRound {
        std::size_t shard, round;
    };

    // Any shard's: who owns which shard is the same in all of them.
    const Schedule &schedule() const { return shared_.shards.front().plan.schedule(); }
    void find_sent_bytes();
    // Makes views of the rows of one shard.
    void take_shard(std::size_t shard, const CallTensors &tensors, const Problem &rows,
                    std::optional<SequenceTensors> &shard_tensors) const;

    const RankPlan::Shared &shared_;
    const annulus_pass pass_;
    Device &device_;
    std::deque<ShardExecutable> shards_;
    std::size_t bytes_ = 0;
    std::map<int, std::size_t> sent_bytes_;             // by rank
    std::vector<std::vector<ShardRound>> shard_rounds_; // [rounds]
    std::vector<Exchange> rows_, gradients_;            // [rounds]
    // What a run uses, by shard. It is made beforehand, since a run allocates nothing once the ranks have agreed.
    std::deque<std::optional<SequenceTensors>> tensors_;
    std::deque<std::optional<ShardRun>> runs_;
};

} // namespace annulus
