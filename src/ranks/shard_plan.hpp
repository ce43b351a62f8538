// SPDX-License-Identifier: Apache-2.0
// The plan of one shard, for the rank that owns it: its queries against its own keys, and against the rows of other
// shards that they attend to.
#pragma once

#include "core/plan.hpp"
#include "ranks/schedule.hpp"

#include <annulus/attention.h>

#include <cstdint>
#include <map>
#include <vector>

namespace annulus {

// Returns the number of tensors whose rows a message has: 2 for K and V, or 1 for K if only dV is wanted. Gradients
// have the same number.
constexpr int message_tensor_count(const Problem &problem) {
    return problem.gradients.only_v ? 1 : 2;
}

class ShardPlan {
  public:
    // `layout` outlives it. Throws as Schedule does.
    ShardPlan(const ShardLayout &layout, int shard, Steps &steps);

    // Returns the plan of the shard's queries against its own keys.
    const Plan &local() const { return local_; }
    // Returns the plan of the shard's queries against the keys of a received message.
    const Plan &remote(const Message &message) const { return remote_.at(&message); }
    const Schedule &schedule() const { return schedule_; }
    // True if the shard exchanges a message with another shard, also with one of the same rank.
    bool communicates() const { return !schedule_.rounds().empty(); }

    // Return the bytes that a pass sends to other ranks, and receives from them.
    std::uint64_t sent_bytes(annulus_pass pass) const;
    std::uint64_t received_bytes(annulus_pass pass) const;

    // Returns the bytes of host memory, with the messages and without the layout.
    std::uint64_t bytes() const;

  private:
    Plan local_;
    Schedule schedule_;
    std::map<const Message *, Plan> remote_; // by received message
};

// Returns the bytes of one tensor with this number of rows in each batch entry. A row has the D elements of one head.
std::int64_t row_tensor_bytes(const Problem &problem, std::int64_t rows, annulus_dtype dtype);

} // namespace annulus
