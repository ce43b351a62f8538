// SPDX-License-Identifier: Apache-2.0
#include "ranks/distributed_executable.hpp"

#include "core/error.hpp"
#include "core/workspace.hpp"
#include "engine/sequence_executables.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace annulus {

DistributedExecutable::DistributedExecutable(const RankPlan &plans, annulus_pass pass, const Engine &engine,
                                             Device &device, const Limits &limits, const RankLinks &links)
    : plans_(plans), pass_(pass), engine_(engine), device_(device), limits_(limits), links_(links),
      shared_(plans, pass, engine, device, limits) {
    const Limits left = limits.without(shared_.memory_bytes());
    if (plans.own()) {
        Preparation prepared = prepare_over_sequences(engine, *plans.own(), pass, device, left);
        alone_ = std::move(prepared.executable);
        refusal_ = prepared.refusal;
    }
    if (!refusal_)
        refusal_ = shared_.prepare(left, alone_ ? alone_->workspace_bytes() : 0);
}

const char *DistributedExecutable::tensor_refusal(const CallTensors &tensors) const {
    const char *const refusal = alone_ ? alone_->tensor_refusal(tensors) : nullptr;
    return refusal ? refusal : shared_.tensor_refusal(tensors);
}

std::int64_t DistributedExecutable::row_alignment() const {
    return std::max(alone_ ? alone_->row_alignment() : 1, shared_.row_alignment());
}

// The memory of the shared sequences comes first, then the workspaces that their executables have of their own, then
// the workspace that all executables of the engine share.
std::size_t DistributedExecutable::workspace_bytes() const {
    Workspace ledger;
    ledger.skip(shared_.memory_bytes());
    ledger.skip(shared_.apart_bytes());
    ledger.skip(std::max(alone_ ? alone_->workspace_bytes() : 0, shared_.workspace_bytes()));
    return ledger.used();
}

void DistributedExecutable::reserve(void *stream) {
    if (links_.transport->can_gather(device_, stream))
        links_.transport->reserve(shared_.sent_bytes());
}

void DistributedExecutable::run(const CallTensors &tensors, const PartialResults &, void *workspace, void *stream) {
    if (!plans_.covers_rows())
        engine_.clear(plans_.rows(), pass_, tensors, device_, limits_, stream);
    void *const apart = workspace ? static_cast<std::byte *>(workspace) + shared_.memory_bytes() : nullptr;
    void *const rest = workspace ? static_cast<std::byte *>(apart) + shared_.apart_bytes() : nullptr;
    shared_.run(tensors, alone_.get(), workspace, apart, rest, stream, *links_.transport, *links_.copier);
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
