// SPDX-License-Identifier: Apache-2.0
#include "call/invocation.hpp"

#include "core/error.hpp"
#include "core/tensor.hpp"
#include "ranks/agreement.hpp"
#include "transport/transport.hpp"

#include <exception>
#include <initializer_list>
#include <new>
#include <utility>

namespace annulus {

namespace {

using Tensors = std::initializer_list<NamedTensor>;

void check_memory(const annulus_context &context, const Tensors &tensors) {
    for (const NamedTensor &tensor : tensors) {
        check_memory(*context.device, tensor);
        check_workspace(context, tensor);
    }
}

// Calls use(inputs, outputs) with the tensors of a pass.
template <class Use> void with_names(annulus_pass pass, const CallTensors &tensors, const Use &use) {
    if (pass == ANNULUS_PASS_MASS)
        use(Tensors{{"q", &tensors.q}, {"k", &tensors.k}, {"lse", tensors.lse}}, Tensors{{"mass", &tensors.mass}});
    else if (pass == ANNULUS_PASS_FORWARD)
        use(Tensors{{"q", &tensors.q}, {"k", &tensors.k}, {"v", &tensors.v}},
            Tensors{{"out", &tensors.out}, {"lse", tensors.lse}});
    else
        use(Tensors{{"q", &tensors.q},
                    {"k", &tensors.k},
                    {"v", &tensors.v},
                    {"out", &tensors.out},
                    {"lse", tensors.lse},
                    {"d_out", &tensors.d_out},
                    {"d_lse", tensors.d_lse}},
            Tensors{{"d_q", &tensors.d_q}, {"d_k", &tensors.d_k}, {"d_v", &tensors.d_v}});
}

} // namespace

// What one rank runs, once it knows all shards.
struct Invocation::ReadyRank {
    RankPlanned &planned;
    const Selection selection;
    CallMemory memory;

    ReadyRank(annulus_context &context, annulus_pass pass, const Arguments &arguments, const Shards &shards,
              const ExecutionSetting &setting)
        : planned(context.plan_rank(arguments.problem, shards, setting.limits, call_planning_steps)),
          selection(planned.executables.select(pass, &arguments.tensors, setting)),
          memory(context, selection.executable.workspace_bytes()) {}
};

Invocation::Invocation(annulus_context *context, annulus_pass pass) : use_(context), context_(*context), pass_(pass) {
    if (context_.comm)
        comm_.emplace(context_.comm, "the communicator of context");
}

void Invocation::run(const Arguments &arguments) {
    with_names(pass_, arguments.tensors, [&](const Tensors &inputs, const Tensors &outputs) {
        check_overlap(inputs, outputs);
        const DeviceScope scope(*context_.device);
        check_memory(context_, inputs);
        check_memory(context_, outputs);
        if (comm_)
            run_with_ranks(arguments);
        else
            run_alone(arguments);
    });
}

void Invocation::execute(Executable &executable, const CallTensors &tensors, void *workspace) const {
    const annulus_status in_the_middle = comm_ ? ANNULUS_ERROR_COMM : ANNULUS_ERROR_DEVICE;
    try {
        executable.run(tensors, {}, workspace, context_.stream);
    } catch (const Error &error) {
        throw error.in_the_middle(in_the_middle);
    } catch (const std::bad_alloc &) {
        throw Error(in_the_middle, "out of memory in the middle of the call");
    }
}

void Invocation::run_alone(const Arguments &arguments) {
    const ExecutionSetting setting = context_.setting();
    LocalPlanned &planned = context_.plan_alone(arguments.problem, setting.limits);
    const Selection selection = planned.executables.select(pass_, &arguments.tensors, setting);
    const CallMemory memory(context_, selection.executable.workspace_bytes());
    execute(selection.executable, arguments.tensors, memory.data());
    context_.last_engine = selection.engine.id;
    context_.sent_bytes = context_.received_bytes = 0;
}

void Invocation::run_with_ranks(const Arguments &arguments) {
    std::optional<ReadyRank> ready;
    agree_and_prepare(ready, arguments);
    auto &[planned, selection, memory] = *ready;
    selection.executable.reserve(context_.stream);
    try {
        execute(selection.executable, arguments.tensors, memory.data());
    } catch (...) {
        if (comm_->transport().holds_memory())
            memory.leave();
        throw;
    }
    context_.last_engine = selection.engine.id;
    context_.sent_bytes = planned.plans.sent_bytes(pass_);
    context_.received_bytes = planned.plans.received_bytes(pass_);
}

template <class Collective> auto Invocation::gather(const Collective &collective) {
    has_told_ranks_ = true;
    try {
        return collective(comm_->transport());
    } catch (const std::bad_alloc &) { // before anything was sent
        has_told_ranks_ = false;
        throw;
    }
}

void Invocation::agree_and_prepare(std::optional<ReadyRank> &ready, const Arguments &arguments) {
    const ExecutionSetting setting = context_.setting();
    Transport &transport = comm_->transport();
    Shards shards = context_.shards.before_call(transport.rank(), arguments.problem.rows.queries.length);
    const bool are_set = context_.shards.are_set();
    transport.check_stream(*context_.device, context_.stream);
    const bool can_ask = transport.can_gather(*context_.device, context_.stream);
    if (shards.pieces.empty() && !can_ask)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "stream is being captured, while ranks cannot tell one another how many rows they have: make "
                    "the same call once before, or set the lengths by annulus_context_set_shards()");
    if (!shards.pieces.empty())
        try {
            ready.emplace(context_, pass_, arguments, shards, setting);
        } catch (const std::exception &) {
            if (are_set || !can_ask)
                throw;
            shards = {}; // they were the last call's, and this call may have others
        }
    if (!can_ask)
        return;
    const annulus_config &config = context_.required_config();
    Agreement agreement = gather([&](Transport &all) {
        return agree(all, {pass_, config.pattern, config.execution.exchange, arguments.problem, shards, are_set});
    });
    has_told_ranks_ = agreement.is_ready;
    if (agreement.shards != shards)
        ready.emplace(context_, pass_, arguments, agreement.shards, setting);
    if (!agreement.is_ready)
        gather([](Transport &all) { confirm(all); });
    context_.shards.remember(std::move(agreement.shards));
}

bool Invocation::can_gather() const {
    const DeviceScope scope(*context_.device);
    return comm_->transport().can_gather(*context_.device, context_.stream);
}

void Invocation::decline(const char *reason) const {
    if (comm_ && !has_told_ranks_ && can_gather())
        annulus::decline(comm_->transport(), reason);
}

} // namespace annulus
