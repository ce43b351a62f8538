// SPDX-License-Identifier: Apache-2.0
// What is done for one shard of a problem, by the rank that has it: its queries meet its own keys, and those rows of
// other shards that they attend to.
#pragma once

#include "core/plan.hpp"
#include "ranks/schedule.hpp"

#include <annulus/attention.h>

#include <cstdint>
#include <map>
#include <vector>

namespace annulus {

// How many tensors a message has rows of: K and V, or where only dV is wanted K; gradients alike.
constexpr int tensors_of_messages(const Problem &problem) {
    return problem.gradients.only_v ? 1 : 2;
}

class RankPlan {
  public:
    // `layout` outlives it. Throws as Schedule.
    RankPlan(const ShardLayout &layout, int shard, Steps &steps);

    // The shard's queries against its own keys.
    const Plan &local() const { return local_; }
    // The shard's queries against the keys of a message.
    const Plan &remote(const Message &message) const { return remote_.at(&message); }
    const Schedule &schedule() const { return schedule_; }
    // Whether the shard has anything to do with others, be they the same rank's.
    bool communicates() const;

    // To and from other ranks.
    std::uint64_t sent_bytes(annulus_pass pass) const;
    std::uint64_t received_bytes(annulus_pass pass) const;

    // Host memory, messages included, without what the layout has.
    std::uint64_t bytes() const;

  private:
    Plan local_;
    Schedule schedule_;
    std::map<const Message *, Plan> remote_; // of each that is received
};

// Bytes of some rows of one tensor, of all batch entries.
std::int64_t bytes_of_rows(const Problem &problem, std::int64_t rows, annulus_dtype dtype);

} // namespace annulus
