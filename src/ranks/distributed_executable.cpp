// SPDX-License-Identifier: Apache-2.0
#include "ranks/distributed_executable.hpp"

#include "core/error.hpp"
#include "engine/sequence_executables.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace annulus {

DistributedExecutable::DistributedExecutable(const RankPlan &plans, annulus_pass pass, const Engine &engine,
                                             Device &device, const Limits &limits, const RankLinks &links)
    : plans_(plans), pass_(pass), engine_(engine), device_(device), limits_(limits), links_(links),
      sent_bytes_(static_cast<std::size_t>(plans.ranks())) {
    if (plans.own())
        own_ = prepare_over_sequences(engine, *plans.own(), pass, device, limits);
    for (const RankPlan::Shared &shared : plans.shared())
        for (const auto &[to, bytes] : shared_.emplace_back(shared, pass, engine, device, limits).sent_bytes())
            sent_bytes_[to] = std::max(sent_bytes_[to], bytes);
}

const char *DistributedExecutable::refusal() const {
    const auto refuses =
        std::ranges::find_if(shared_, [](const SharedSequence &sequence) { return sequence.refusal(); });
    return refuses == shared_.end() ? own_.refusal : refuses->refusal();
}

const char *DistributedExecutable::tensor_refusal(const CallTensors &tensors) const {
    const char *refusal = own_.executable ? own_.executable->tensor_refusal(tensors) : nullptr;
    for (const SharedSequence &sequence : shared_)
        if (!refusal)
            refusal = sequence.tensor_refusal(tensors, plans_.rows());
    return refusal;
}

std::int64_t DistributedExecutable::row_alignment() const {
    std::int64_t most = own_.executable ? own_.executable->row_alignment() : 1;
    for (const SharedSequence &sequence : shared_)
        most = std::max(most, sequence.row_alignment());
    return most;
}

std::size_t DistributedExecutable::workspace_bytes() const {
    std::size_t most = own_.executable ? own_.executable->workspace_bytes() : 0;
    for (const SharedSequence &sequence : shared_)
        most = std::max(most, sequence.workspace_bytes());
    return most;
}

void DistributedExecutable::reserve(void *stream) {
    if (links_.transport->can_gather(device_, stream))
        links_.transport->reserve(sent_bytes_);
}

void DistributedExecutable::run(const CallTensors &tensors, const PartialResults &, void *workspace, void *stream) {
    if (!plans_.covers_rows())
        engine_.clear(plans_.rows(), pass_, tensors, device_, limits_, stream);
    if (own_.executable)
        own_.executable->run(tensors, {}, workspace, stream);
    for (SharedSequence &sequence : shared_)
        sequence.run(tensors, plans_.rows(), workspace, stream, *links_.transport, *links_.copier);
}

Preparation prepare_distributed(const RankPlan &plans, annulus_pass pass, const Engine &engine, Device &device,
                                const Limits &limits, const RankLinks &links) {
    if (!engine.has_key_scopes)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s computes on one rank alone, without a communicator",
                    engine_name(engine.id));
    auto executable = std::make_unique<DistributedExecutable>(plans, pass, engine, device, limits, links);
    if (const char *const refusal = executable->refusal())
        return {nullptr, refusal};
    return {std::move(executable)};
}

} // namespace annulus
