// SPDX-License-Identifier: Apache-2.0
// One rank's part of a call over some sequences: those of its own, then one after the other those that it shares, all
// ranks in the same order.
#pragma once

#include "engine/engine.hpp"
#include "engine/sequence_calls.hpp"
#include "ranks/rank_call.hpp"
#include "ranks/rank_plans.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace annulus {

class RankSequences {
  public:
    // `plans` and `device` outlive it.
    RankSequences(const RankPlans &plans, annulus_pass pass, const Engine &engine, Device &device,
                  const Limits &limits);

    // As RankCall's.
    const char *refusal() const;
    const char *tensor_refusal(const CallTensors &tensors) const;
    std::int64_t row_alignment() const;
    std::size_t workspace_bytes() const;
    // As RankCall's, of all sequences: one number for each rank.
    const std::vector<std::size_t> &sends() const { return sends_; }
    void run(const CallTensors &tensors, void *workspace, void *stream, Transport &transport, MessageCopier &copier);

  private:
    const RankPlans &plans_;
    const annulus_pass pass_;
    const Engine &engine_;
    Device &device_;
    const Limits limits_;
    Preparation own_;
    std::deque<RankCall> shared_;
    std::vector<std::size_t> sends_;
};

} // namespace annulus
