// SPDX-License-Identifier: Apache-2.0
#include "call/pass_call.hpp"

#include "call/mass_call.hpp"
#include "core/tensor.hpp"
#include "ranks/agreement.hpp"
#include "transport/transport.hpp"

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <utility>
#include <vector>

namespace annulus {

namespace {

using Tensors = std::initializer_list<NamedTensor>;

void check_memory(const annulus_context &context, const Tensors &arguments) {
    for (const NamedTensor &argument : arguments) {
        check_memory(*context.device, argument);
        check_workspace(context, argument);
    }
}

// use(inputs, outputs) of a pass.
template <class Use> void with_names(annulus_pass pass, const CheckedCall &call, const Use &use) {
    const CallTensors &t = call.tensors;
    if (pass == ANNULUS_PASS_MASS)
        use(Tensors{{"q", &t.q}, {"k", &t.k}, {"lse", t.lse}}, Tensors{{"mass", call.mass}});
    else if (pass == ANNULUS_PASS_FORWARD)
        use(Tensors{{"q", &t.q}, {"k", &t.k}, {"v", &t.v}}, Tensors{{"out", &t.out}, {"lse", t.lse}});
    else
        use(Tensors{{"q", &t.q},
                    {"k", &t.k},
                    {"v", &t.v},
                    {"out", &t.out},
                    {"lse", t.lse},
                    {"d_out", &t.d_out},
                    {"d_lse", t.d_lse}},
            Tensors{{"d_q", &t.d_q}, {"d_k", &t.d_k}, {"d_v", &t.d_v}});
}

// What an engine is asked about.
CallTensors engine_tensors(const CheckedCall &call) {
    return call.mass ? MassCall(call.problem.rows, call.tensors, *call.mass, nullptr).tensors() : call.tensors;
}

} // namespace

PassCall::PassCall(annulus_context *context, annulus_pass pass) : use_(context), context_(*context), pass_(pass) {
    if (context_.comm)
        comm_.emplace(context_.comm, "the communicator of context");
}

void PassCall::run(const CheckedCall &call) {
    with_names(pass_, call, [&](const Tensors &inputs, const Tensors &outputs) {
        check_overlap(inputs, outputs);
        const DeviceScope scope(*context_.device);
        check_memory(context_, inputs);
        check_memory(context_, outputs);
        if (comm_)
            run_with_others(call);
        else
            run_alone(call);
    });
}

CallSetting PassCall::setting(const CheckedCall &call) const {
    return context_.setting(own_bytes(pass_, call.problem.rows));
}

template <class Pass> std::int64_t PassCall::run_each_pass(const CheckedCall &call, void *memory, const Pass &pass) {
    if (!call.mass) {
        pass(call.tensors, memory);
        return 1;
    }
    MassCall mass(call.problem.rows, call.tensors, *call.mass, memory);
    void *const of_engine = static_cast<std::byte *>(memory) + own_bytes(pass_, call.problem.rows);
    mass.run(context_, [&] { pass(mass.tensors(), of_engine); });
    return mass.rounds();
}

template <class Pass> std::int64_t PassCall::run_passes(const CheckedCall &call, void *memory, const Pass &pass) {
    const annulus_status in_the_middle = comm_ ? ANNULUS_ERROR_COMM : ANNULUS_ERROR_DEVICE;
    try {
        return run_each_pass(call, memory, pass);
    } catch (const Error &error) {
        throw error.in_the_middle(in_the_middle);
    } catch (const std::bad_alloc &) {
        throw Error(in_the_middle, "out of memory in the middle of the call");
    }
}

void PassCall::run_alone(const CheckedCall &call) {
    const CallSetting setting = this->setting(call);
    WholeCalls &calls = context_.whole_calls(call.problem, setting.limits);
    const CallTensors tensors = engine_tensors(call);
    const auto chosen = calls.choose(engine_pass(pass_), &tensors, setting);
    const CallMemory memory(context_, setting.own_bytes + chosen.call.workspace_bytes());
    run_passes(call, memory.data(), [&](const CallTensors &of_pass, void *workspace) {
        chosen.call.run(of_pass, workspace, context_.stream);
    });
    context_.last_engine = chosen.engine.id;
    context_.sent_bytes = context_.received_bytes = 0;
}

// What this rank needs for its part, once it knows all shards.
struct PassCall::RankPart {
    RankCalls &calls;
    const ChosenCall<RankSequences> chosen;
    CallMemory memory;

    RankPart(annulus_context &context, const CheckedCall &call, const Shards &shards, annulus_pass pass,
             const CallTensors &tensors, const CallSetting &setting)
        : calls(context.rank_calls(call.problem, shards, setting.limits, call_steps)),
          chosen(calls.choose(engine_pass(pass), &tensors, setting)),
          memory(context, setting.own_bytes + chosen.call.workspace_bytes()) {}
};

void PassCall::run_with_others(const CheckedCall &call) {
    std::optional<RankPart> ready;
    get_ready(ready, call);
    RankPart &part = *ready;
    RankSequences &prepared = part.chosen.call;
    Transport &transport = comm_->transport();
    if (transport.can_gather(*context_.device, context_.stream))
        transport.reserve(prepared.sends());
    std::int64_t passes = 0;
    try {
        passes = run_passes(call, part.memory.data(), [&](const CallTensors &of_pass, void *workspace) {
            prepared.run(of_pass, workspace, context_.stream, transport, *context_.message_copier);
        });
    } catch (...) {
        if (transport.holds_memory())
            part.memory.leave();
        throw;
    }
    context_.last_engine = part.chosen.engine.id;
    context_.sent_bytes = passes * part.calls.plan().sent_bytes(engine_pass(pass_));
    context_.received_bytes = passes * part.calls.plan().received_bytes(engine_pass(pass_));
}

template <class Speech> auto PassCall::speak(const Speech &speech) {
    has_spoken_ = true;
    try {
        return speech(comm_->transport());
    } catch (const std::bad_alloc &) { // before anything was sent
        has_spoken_ = false;
        throw;
    }
}

void PassCall::get_ready(std::optional<RankPart> &part, const CheckedCall &call) {
    const CallSetting setting = this->setting(call);
    const CallTensors tensors = engine_tensors(call);
    Shards shards = context_.known_shards(call.problem.rows.queries.length);
    const bool are_set = !context_.set_shards.pieces.empty();
    comm_->transport().check_stream(*context_.device, context_.stream);
    const bool can_ask = comm_->transport().can_gather(*context_.device, context_.stream);
    if (shards.pieces.empty() && !can_ask)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "stream is being captured, while ranks cannot tell one another how many rows they have: make "
                    "the same call once before, or set the lengths by annulus_context_set_shards()");
    if (!shards.pieces.empty())
        try {
            part.emplace(context_, call, shards, pass_, tensors, setting);
        } catch (const std::exception &) {
            if (are_set || !can_ask)
                throw;
            shards = {}; // they were those of the call before, and need not be those of this one
        }
    if (!can_ask)
        return;
    const annulus_config &config = context_.required_config();
    Agreement agreement = speak([&](Transport &transport) {
        return agree(transport, {pass_, config.pattern, config.execution.exchange, call.problem, shards, are_set});
    });
    has_spoken_ = agreement.is_ready;
    if (agreement.shards != shards)
        part.emplace(context_, call, agreement.shards, pass_, tensors, setting);
    if (!agreement.is_ready)
        speak([](Transport &transport) { confirm(transport); });
    context_.agreed_shards = std::move(agreement.shards);
}

bool PassCall::can_speak() const {
    const DeviceScope scope(*context_.device);
    return comm_->transport().can_gather(*context_.device, context_.stream);
}

void PassCall::tell_others(const char *message) const {
    if (comm_ && !has_spoken_ && can_speak())
        decline(comm_->transport(), message);
}

} // namespace annulus
