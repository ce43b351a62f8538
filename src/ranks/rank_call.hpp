// SPDX-License-Identifier: Apache-2.0
// A call over several ranks: this rank's queries meet the keys of its own shard while rows of other shards are on their
// way, then each of those as it arrives, in one running softmax. Backward returns the gradients of the rows that came
// to their owners, who add them up in the order of the hops: the same bits every time.
#pragma once

#include "core/plan.hpp"
#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"
#include "ranks/schedule.hpp"
#include "transport/transport.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// What one rank does for a problem: a function of pattern, problem and shards.
class RingPlan {
  public:
    // The problem's windows are not looked at. Throws as Schedule.
    RingPlan(const Pattern &pattern, const Problem &problem, const std::vector<Window> &shards, int rank,
             annulus_exchange exchange, std::int64_t most_steps);

    // The rank's queries against its own keys.
    const Plan &local() const { return local_; }
    // The rank's queries against the keys of a message. None of them is hidden, and padding keys are the local step's.
    const Plan &remote(const Message &message) const { return *remote_[static_cast<std::size_t>(message.from)]; }
    const Schedule &schedule() const { return schedule_; }
    // Whether the rank sends or receives anything.
    bool communicates() const;

    std::uint64_t sent_bytes(annulus_pass pass) const;
    std::uint64_t received_bytes(annulus_pass pass) const;

  private:
    Plan local_;
    Schedule schedule_;
    std::vector<std::optional<Plan>> remote_; // of each rank that sends something
};

// What a call computes and communicates with.
struct RingResources {
    const Engine &engine;
    const Resources &resources;
    Transport &transport;
    MessageCopier &mover;
};

// Bytes of workspace; within the resources' limit where the engine can keep it.
std::size_t ring_bytes(const RingPlan &plan, annulus_pass pass, const Engine &engine, const Resources &resources);

// The tensors are those of the rank's shard; where the shard is empty they are not touched.
void ring_forward(const RingPlan &plan, const ForwardTensors &tensors, Workspace &workspace,
                  const RingResources &resources);
void ring_backward(const RingPlan &plan, const BackwardTensors &tensors, Workspace &workspace,
                   const RingResources &resources);

} // namespace annulus
