// SPDX-License-Identifier: Apache-2.0
// What one rank does for the sequences of a call: those that it has all rows of are its own affair, those that it
// shares with other ranks are a RankPlan for each of its shards.
#pragma once

#include "core/sequences.hpp"
#include "ranks/rank_plan.hpp"

#include <annulus/attention.h>
#include <annulus/config.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace annulus {

// A function of pattern, problem and shards.
class RankPlans {
  public:
    struct Shard {
        std::int64_t position_of_row_0; // of the rank's rows, where they went on before the shard as they do in it
        RankPlan plan;                  // stays where it is made

        Shard(std::int64_t position, const ShardLayout &layout, int shard, Steps &steps)
            : position_of_row_0(position), plan(layout, shard, steps) {}
    };
    struct Shared {
        Sequence sequence;
        ShardLayout layout;       // stays where it is made
        std::deque<Shard> shards; // in which the rank has rows of it

        Shared(const Sequence &rows, const Pattern &pattern, const Problem &problem, Shards pieces,
               annulus_exchange exchange)
            : sequence(rows), layout(pattern, problem, std::move(pieces), exchange) {}
    };

    // The problem's windows are not looked at. Throws Error(ANNULUS_ERROR_UNSUPPORTED) where planning takes more than
    // `most_steps`, or the rank's shards have more than most_shard_pairs in reach, and Error(ANNULUS_ERROR_ARGUMENT)
    // where a sequence leaves the rows of all ranks.
    RankPlans(const Pattern &pattern, const CallProblem &problem, const Shards &shards, int rank,
              annulus_exchange exchange, std::int64_t most_steps);
    // Calls refer to it.
    RankPlans(const RankPlans &) = delete;
    RankPlans &operator=(const RankPlans &) = delete;

    // How many ranks there are.
    int ranks() const { return ranks_; }
    // The rank's rows: where they are one shard among those of all, else from 0 on.
    const Problem &rows() const { return rows_; }
    // Sequences of which it has all rows; null where there are none.
    const SequencePlans *own() const { return own_ ? &*own_ : nullptr; }
    // Those of which it has some, in the order of their rows; where all rows are one sequence, this one.
    const std::deque<Shared> &shared() const { return shared_; }
    // Each of the rank's rows belongs to a sequence.
    bool covers_rows() const { return covers_rows_; }

    // What `auto` comes to: `ring` where it does for some sequence.
    annulus_exchange exchange() const;
    // Return the bytes that the rank exchanges with other ranks in one call of a pass.
    std::uint64_t sent_bytes(annulus_pass pass) const;
    std::uint64_t received_bytes(annulus_pass pass) const;

    // The pairs of all of the rank's queries, as Plan::pairs().
    double pairs(std::int32_t branch) const;
    // Host memory, messages included.
    std::uint64_t bytes() const;

  private:
    std::uint64_t traffic(annulus_pass pass, std::uint64_t (RankPlan::*bytes)(annulus_pass) const) const;

    int ranks_;
    Problem rows_;
    std::optional<SequencePlans> own_;
    std::deque<Shared> shared_;
    bool covers_rows_;
};

} // namespace annulus
