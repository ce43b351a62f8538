// SPDX-License-Identifier: Apache-2.0
// The plan of one shard, for the rank that owns it: its queries against its own keys, and against the rows of other
// shards that they attend to.
#pragma once

#include "core/plan.hpp"
#include "ranks/schedule.hpp"

#include <annulus/attention.h>

#include <cstdint>
#include <vector>

namespace annulus {

// Returns the number of tensors whose rows a message has: 2 for K and V, or 1 for K if only dV is wanted. Gradients
// have the same number.
constexpr int message_tensor_count(const Problem &problem) {
    return problem.gradients.only_v ? 1 : 2;
}

// Received keys that a shard attends to at once: those of one message, or of several that arrive in the same round.
// Attending takes launches of its own, however few keys there are.
struct ReceivedKeys {
    std::vector<const Message *> messages; // in the order of their keys
    // As Message has them: a head has one slot for every `stride` positions of `keys`.
    Window keys;
    std::int64_t stride;
    Plan plan; // of the shard's queries against these keys

    std::int64_t slots() const { return divide_up(keys.length, stride); }
    // True if the rows of the only message have one layout on the wire and in slots.
    bool are_full() const { return messages.size() == 1 && messages.front()->is_full(); }
};

class ShardPlan {
  public:
    // `layout` outlives it. Throws as Schedule does.
    ShardPlan(const ShardLayout &layout, int shard, Steps &steps);

    // Returns the plan of the shard's queries against its own keys.
    const Plan &local() const { return local_; }
    // Returns the received keys of each round of the schedule.
    const std::vector<std::vector<ReceivedKeys>> &received() const { return received_; }
    const Schedule &schedule() const { return schedule_; }
    // True if the shard exchanges a message with another shard, also with one of the same rank.
    bool communicates() const { return !schedule_.rounds().empty(); }
    // True if a pass adds results of received messages to those over the shard's own keys. The forward pass of a shard
    // that only sends has none, as that of the first shard under a causal mask.
    bool has_partial_results(annulus_pass pass) const;

    // Return the bytes that a pass sends to other ranks, and receives from them.
    std::uint64_t sent_bytes(annulus_pass pass) const;
    std::uint64_t received_bytes(annulus_pass pass) const;

    // Returns the bytes of host memory, with the messages and without the layout.
    std::uint64_t bytes() const;

  private:
    Plan local_;
    Schedule schedule_;
    std::vector<std::vector<ReceivedKeys>> received_; // [rounds]
};

// Returns the bytes of one tensor with this number of rows in each batch entry. A row has the D elements of one head.
std::int64_t row_tensor_bytes(const Problem &problem, std::int64_t rows, annulus_dtype dtype);

} // namespace annulus
