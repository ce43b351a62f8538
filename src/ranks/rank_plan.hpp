// SPDX-License-Identifier: Apache-2.0
// One rank's plans for the sequences of a call. A sequence that the rank has all rows of needs no other rank. All such
// sequences are planned together, whichever of the rank's shards they lie in. For a sequence that it shares with other
// ranks it has a ShardPlan for each of its shards.
#pragma once

#include "core/sequences.hpp"
#include "ranks/shard_plan.hpp"

#include <annulus/attention.h>
#include <annulus/config.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace annulus {

// A function of pattern, problem and shards.
class RankPlan {
  public:
    struct Shard {
        // The position of the shard's first row, minus the index of that row in the rank's tensors.
        std::int64_t position_of_row_0;
        ShardPlan plan; // is not moved: executables refer to it

        Shard(std::int64_t position, const ShardLayout &layout, int shard, Steps &steps)
            : position_of_row_0(position), plan(layout, shard, steps) {}
    };
    struct Shared {
        Sequence sequence;
        ShardLayout layout;       // is not moved: plans refer to it
        std::deque<Shard> shards; // the rank's shards of the sequence

        Shared(const Sequence &rows, const Pattern &pattern, const Problem &problem, Shards pieces,
               annulus_exchange exchange)
            : sequence(rows), layout(pattern, problem, std::move(pieces), exchange) {}
    };

    // Ignores the problem's windows. Throws
    //
    // - Error(ANNULUS_ERROR_UNSUPPORTED) if planning takes more than `max_steps`;
    // - the same if more than max_shard_pairs pairs of a sending and a receiving shard have a shard of the rank;
    // - Error(ANNULUS_ERROR_ARGUMENT) if a sequence ends beyond the rows of all ranks.
    RankPlan(const Pattern &pattern, const CallProblem &problem, const Shards &shards, int rank,
             annulus_exchange exchange, std::int64_t max_steps);
    // Executables refer to it.
    RankPlan(const RankPlan &) = delete;
    RankPlan &operator=(const RankPlan &) = delete;

    // Returns the number of ranks.
    int ranks() const { return ranks_; }
    // Returns a problem whose windows are the rank's rows, as Shards::window_of() gives them.
    const Problem &rows() const { return rows_; }
    // Returns the plans of the sequences that the rank has all rows of, as windows of its rows(); null if there are
    // none.
    const SequencePlans *own() const { return own_ ? &*own_ : nullptr; }
    // Returns the sequences that the rank shares, in the order of their rows. If a call names no sequences, all rows
    // are one shared sequence.
    const std::deque<Shared> &shared() const { return shared_; }
    // True if each of the rank's rows belongs to a sequence.
    bool covers_rows() const { return covers_rows_; }

    // Returns `ring` if any shared sequence uses it, else `gather`.
    annulus_exchange exchange() const;
    // Return the bytes that the rank exchanges with other ranks in one call of a pass.
    std::uint64_t sent_bytes(annulus_pass pass) const;
    std::uint64_t received_bytes(annulus_pass pass) const;
    // Returns the number of messages of rows that the rank's shards receive, also from shards of the rank itself.
    // Messages with which a shard computes together count as one.
    std::int64_t received_messages() const;

    // Returns the (query, key) pairs of the rank's queries, as Plan::pairs() counts them.
    double pairs(std::int32_t branch) const;
    // Returns the bytes of host memory, with the messages.
    std::uint64_t bytes() const;

  private:
    struct Making;

    // Returns the position of row 0 of the rank's tensors if the positions of a shard continued before the shard.
    std::int64_t position_of_row_0(const Making &making, std::size_t shard) const;
    // Returns the exchange of each sequence, `gather` or `ring`.
    std::vector<annulus_exchange> exchanges_of(const Making &making, const std::vector<Sequence> &sequences) const;
    // Plans the rank's rows of a shared sequence.
    void share(Making &making, const Sequence &sequence, SequenceShards shards, annulus_exchange exchange);
    void plan_sequences(Making &making, const std::vector<Sequence> &sequences);

    std::uint64_t traffic(annulus_pass pass, std::uint64_t (ShardPlan::*bytes_of)(annulus_pass) const) const;

    int ranks_;
    Problem rows_;
    std::optional<SequencePlans> own_;
    std::deque<Shared> shared_;
    bool covers_rows_;
};

} // namespace annulus
