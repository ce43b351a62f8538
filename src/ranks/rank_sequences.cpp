// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_sequences.hpp"

#include "core/error.hpp"

#include <algorithm>

namespace annulus {

RankSequences::RankSequences(const RankPlans &plans, annulus_pass pass, const Engine &engine, Device &device,
                             const Limits &limits)
    : plans_(plans), pass_(pass), engine_(engine), device_(device), limits_(limits),
      sends_(static_cast<std::size_t>(plans.ranks())) {
    if (!engine.has_parts) // even where the rank shares no sequence: that depends on the lengths of a call
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s computes on one rank alone, without a communicator",
                    engine_name(engine.id));
    if (plans.own())
        own_ = prepare_sequences(engine, *plans.own(), pass, device, limits);
    for (const RankPlans::Shared &shared : plans.shared())
        std::ranges::transform(shared_.emplace_back(shared, pass, engine, device, limits).sends(), sends_,
                               sends_.begin(), std::ranges::max);
}

const char *RankSequences::refusal() const {
    const auto refuses = std::ranges::find_if(shared_, [](const RankCall &call) { return call.refusal(); });
    return refuses == shared_.end() ? own_.refusal : refuses->refusal();
}

const char *RankSequences::tensor_refusal(const CallTensors &tensors) const {
    const char *refusal = own_.call ? own_.call->tensor_refusal(tensors) : nullptr;
    for (const RankCall &call : shared_)
        if (!refusal)
            refusal = call.tensor_refusal(tensors, plans_.rows());
    return refusal;
}

std::int64_t RankSequences::row_alignment() const {
    std::int64_t most = own_.call ? own_.call->row_alignment() : 1;
    for (const RankCall &call : shared_)
        most = std::max(most, call.row_alignment());
    return most;
}

std::size_t RankSequences::workspace_bytes() const {
    std::size_t most = own_.call ? own_.call->workspace_bytes() : 0;
    for (const RankCall &call : shared_)
        most = std::max(most, call.workspace_bytes());
    return most;
}

void RankSequences::run(const CallTensors &tensors, void *workspace, void *stream, Transport &transport,
                        MessageCopier &copier) {
    if (!plans_.covers_rows())
        engine_.clear(plans_.rows(), pass_, tensors, device_, limits_, stream);
    if (own_.call)
        own_.call->run(tensors, {}, workspace, stream);
    for (RankCall &call : shared_)
        call.run(tensors, plans_.rows(), workspace, stream, transport, copier);
}

} // namespace annulus
