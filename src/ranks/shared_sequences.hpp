// SPDX-License-Identifier: Apache-2.0
// What one rank does for the sequences that it shares with other ranks: all of them in one exchange. Round i of the
// call is round i of every sequence.
#pragma once

#include "engine/sequence_executables.hpp"
#include "ranks/rank_plan.hpp"
#include "ranks/shard_executable.hpp"

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace annulus {

// The most bytes of all workspaces that the executables of a rank have of their own. Tables and counters take some
// kilobytes each; larger workspaces have results of whole launches. Not measured.
constexpr std::size_t max_apart_bytes = std::size_t{16} << 20;

// Prepared once. One thread uses it at a time.
class SharedSequences {
  public:
    // `plans` and `device` outlive it. The workspace limit does not matter yet.
    SharedSequences(const RankPlan &plans, annulus_pass pass, const Engine &engine, Device &device,
                    const Limits &limits);

    // Prepares the engine's executables. Returns why the engine cannot serve the plans; null if it can. Called once.
    // `alone_bytes` of the workspace are used beside them.
    const char *prepare(const Limits &limits, std::size_t alone_bytes);

    // The same as ShardExecutable's, over all shards. All shards use the same workspace, unless their executables have
    // workspaces of their own, and each shard has memory of its own.
    const char *tensor_refusal(const CallTensors &tensors) const;
    std::int64_t row_alignment() const;
    std::size_t memory_bytes() const { return memory_bytes_; }
    std::size_t workspace_bytes() const;
    // Returns the bytes of the workspaces that executables have of their own.
    std::size_t apart_bytes() const { return apart_bytes_; }
    // Returns for each rank the most bytes that a round sends to it, as add_message() counts them.
    const std::vector<std::size_t> &sent_bytes() const { return sent_bytes_; }

    // Runs `alone` as well, which attends to no other rank's keys, while the first messages travel; it may be null.
    // `tensors` have all of the rank's rows. `apart` has apart_bytes().
    void run(const CallTensors &tensors, Executable *alone, void *memory, void *apart, void *workspace, void *stream,
             Transport &transport, MessageCopier &copier);

  private:
    class Rounds;

    // What one round sends and receives.
    struct Exchange {
        ShardBatch batch; // every message, also a message between two shards of this rank
        Batch travel;     // the messages from and to other ranks alone
    };
    // A shard of the rank in a sequence. A run uses `tensors` and `run`. They are made beforehand, since a run
    // allocates nothing once the ranks have agreed.
    struct Shard {
        std::size_t sequence; // its index in RankPlan::shared()
        const RankPlan::Shard &planned;
        ShardExecutable executable;
        std::optional<SequenceTensors> tensors;
        std::optional<ShardRun> run;

        Shard(std::size_t sequence_index, const RankPlan::Shard &shard, annulus_pass pass, const Engine &engine,
              Device &device, const Limits &limits)
            : sequence(sequence_index), planned(shard), executable(shard.plan, pass, engine, device, limits) {}
    };
    // A shard in a round in which it has messages, and the round's index among the shard's own.
    struct ShardRound {
        Shard *shard;
        std::size_t round;
    };

    void make_rounds();
    void find_apart_bytes(const Limits &limits, std::size_t alone_bytes);
    void find_sent_bytes();
    // Sets `shard_tensors` to views of the shard's rows in the rank's tensors.
    void view_shard(const Shard &shard, const CallTensors &tensors,
                    std::optional<SequenceTensors> &shard_tensors) const;

    const RankPlan &plans_;
    const annulus_pass pass_;
    Device &device_;
    std::deque<Shard> shards_; // by sequence
    std::size_t memory_bytes_ = 0;
    // True if the executables of the only round have workspaces of their own, and run beside one another.
    bool runs_beside_ = false;
    std::size_t apart_bytes_ = 0;
    std::vector<std::size_t> sent_bytes_;               // [ranks]
    std::vector<std::vector<ShardRound>> shard_rounds_; // [rounds]
    std::vector<Exchange> rows_, gradients_;            // [rounds]
};

} // namespace annulus
