// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h, the passes: from the caller's tensors to a checked problem, its plan, an engine and a workspace.
// Everything is checked before anything is written.
#include <annulus/attention.h>

#include "call/comm.hpp"
#include "call/context.hpp"
#include "call/service.hpp"
#include "capi/argument.hpp"
#include "capi/guard.hpp"
#include "capi/problem.hpp"
#include "core/tensor.hpp"
#include "ranks/agreement.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <new>
#include <optional>
#include <utility>
#include <vector>

using namespace annulus;

namespace {

void check_memory(const Device &device, std::initializer_list<NamedTensor> arguments) {
    for (const NamedTensor &argument : arguments) {
        if (!argument.tensor || is_empty(*argument.tensor))
            continue;
        char name[32];
        std::snprintf(name, sizeof name, "data of %s", argument.name);
        device.check_memory(name, argument.tensor->data);
    }
}

// A call of one pass.
class PassCall {
  public:
    PassCall(annulus_context *context, annulus_pass pass) : use_(context), context_(*context), pass_(pass) {
        if (context_.comm)
            check_process("the communicator of context", *context_.comm);
    }

    // check() makes sure of the arguments and calls run(). Where other ranks take part they learn of it if this one
    // cannot.
    template <class Check> void carry_out(const Check &check) {
        try {
            context_.required_config();
            check(*this);
        } catch (const Error &error) {
            tell_others(error.what());
            throw;
        } catch (const std::bad_alloc &) {
            tell_others("out of memory");
            throw;
        }
    }

    Problem check_inputs(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor &v,
                         const annulus_window *window) const {
        if (!context_.comm)
            return annulus::check_inputs(q, k, v, window, false);
        if (window)
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "window is not NULL; with several ranks the query rows of a rank are those of its shard");
        const Problem problem = annulus::check_inputs(q, k, v, nullptr, true);
        context_.check_rows(problem.queries.length);
        return problem;
    }

    // Checks where the tensors lie, each of which was checked for itself, and finds who computes it and the memory for
    // it. Then alone(engine, plan, workspace, resources) or together(plan, workspace, resources) runs.
    template <class Alone, class Together>
    void run(const Problem &problem, const CallTensors &tensors, std::initializer_list<NamedTensor> inputs,
             std::initializer_list<NamedTensor> outputs, const Alone &alone, const Together &together) {
        check_overlap(inputs, outputs);
        const DeviceScope scope(*context_.device);
        check_memory(*context_.device, inputs);
        check_memory(*context_.device, outputs);
        if (!context_.comm) {
            const Plan &plan = context_.plan_for(problem);
            const Service service(context_, plan, pass_, tensors);
            const CallMemory memory(context_, service.workspace_bytes);
            Workspace workspace(memory.data());
            alone(service.engine, plan, workspace, service.resources);
            context_.last_engine = service.engine.id;
            context_.sent_bytes = context_.received_bytes = 0;
            return;
        }
        std::optional<Part> prepared;
        prepare(prepared, problem, tensors);
        auto &[plan, service, memory] = *prepared;
        Workspace workspace(memory.data());
        Transport &transport = *context_.comm->transport;
        try {
            together(plan, workspace, RingResources{service.engine, service.resources, transport, *context_.row_mover});
        } catch (...) {
            if (transport.holds_memory())
                memory.leave();
            throw;
        }
        context_.last_engine = service.engine.id;
        context_.sent_bytes = plan.sent_bytes(pass_);
        context_.received_bytes = plan.received_bytes(pass_);
    }

  private:
    // What this rank needs for its part, once it knows the lengths of all shards.
    struct Part {
        const RingPlan &plan;
        const Service service;
        CallMemory memory;

        Part(annulus_context &context, const Problem &problem, const std::vector<std::int64_t> &lengths,
             annulus_pass pass, const CallTensors &tensors)
            : plan(context.ring_plan_for(problem, lengths, call_steps)), service(context, plan, pass, tensors),
              memory(context, service.workspace_bytes) {}
    };

    // Runs what tells the others of this rank.
    template <class Speech> auto speak(const Speech &speech) {
        has_spoken_ = true;
        try {
            return speech(*context_.comm->transport);
        } catch (const std::bad_alloc &) { // before anything was sent
            has_spoken_ = false;
            throw;
        }
    }

    // Together with the other ranks. A rank gets ready for the lengths that it knows and tells its own, in one question
    // to all. Where the others' turn out to be other ones, it gets ready for these, and there is a second question:
    // whether all are.
    void prepare(std::optional<Part> &part, const Problem &problem, const CallTensors &tensors) {
        std::vector<std::int64_t> lengths = context_.known_lengths(problem.queries.length);
        const bool are_set = !context_.shard_lengths.empty();
        const bool can_ask = context_.comm->transport->can_gather(*context_.device, context_.stream);
        if (lengths.empty() && !can_ask)
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "stream is being captured, while ranks cannot tell one another how many rows they have: make "
                        "the same call once before, or set the lengths by annulus_context_set_shards()");
        if (!lengths.empty())
            try {
                part.emplace(context_, problem, lengths, pass_, tensors);
            } catch (const std::exception &) {
                if (are_set || !can_ask)
                    throw;
                lengths.clear(); // they were those of the call before, and need not be those of this one
            }
        if (!can_ask)
            return;
        const annulus_config &config = context_.required_config();
        Agreement agreement = speak([&](Transport &transport) {
            return agree(transport, {pass_, config.pattern, config.execution.exchange, problem, lengths, are_set});
        });
        has_spoken_ = agreement.is_ready;
        if (agreement.lengths != lengths)
            part.emplace(context_, problem, agreement.lengths, pass_, tensors);
        if (!agreement.is_ready)
            speak([](Transport &transport) { confirm(transport); });
        context_.agreed_lengths = std::move(agreement.lengths);
    }

    bool can_speak() const {
        const DeviceScope scope(*context_.device);
        return context_.comm->transport->can_gather(*context_.device, context_.stream);
    }

    void tell_others(const char *message) const {
        if (context_.comm && !has_spoken_ && can_speak())
            decline(*context_.comm->transport, message);
    }

    const ContextUse use_;
    annulus_context &context_;
    const annulus_pass pass_;
    bool has_spoken_ = false; // the others do not wait for a word of this rank
};

} // namespace

annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                               const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                               const annulus_window *window) {
    return guard([&] {
        PassCall(context, ANNULUS_PASS_FORWARD).carry_out([&](PassCall &call) {
            required(q, "q");
            required(k, "k");
            required(v, "v");
            required(out, "out");
            const Problem problem = call.check_inputs(*q, *k, *v, window);
            check_query_rows(problem, {"out", out});
            if (lse)
                check_statistic(problem, {"lse", lse});
            const ForwardTensors tensors{*q, *k, *v, *out, lse};
            call.run(
                problem, {.forward = &tensors}, {{"q", q}, {"k", k}, {"v", v}}, {{"out", out}, {"lse", lse}},
                [&](const Engine &engine, const Plan &plan, Workspace &workspace, const Resources &resources) {
                    engine.forward(plan, tensors, workspace, resources);
                },
                [&](const RingPlan &plan, Workspace &workspace, const RingResources &resources) {
                    ring_forward(plan, tensors, workspace, resources);
                });
        });
    });
}

annulus_status annulus_backward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                                const annulus_tensor *d_out, const annulus_tensor *d_lse, const annulus_tensor *d_q,
                                const annulus_tensor *d_k, const annulus_tensor *d_v, const annulus_window *window) {
    return guard([&] {
        PassCall(context, ANNULUS_PASS_BACKWARD).carry_out([&](PassCall &call) {
            required(q, "q");
            required(k, "k");
            required(v, "v");
            required(out, "out");
            required(lse, "lse");
            required(d_out, "d_out");
            required(d_q, "d_q");
            required(d_k, "d_k");
            required(d_v, "d_v");
            const Problem problem = call.check_inputs(*q, *k, *v, window);
            check_query_rows(problem, {"out", out});
            check_statistic(problem, {"lse", lse});
            check_query_rows(problem, {"d_out", d_out});
            if (d_lse)
                check_statistic(problem, {"d_lse", d_lse});
            check_query_rows(problem, {"d_q", d_q});
            check_key_rows(problem, {"d_k", d_k});
            check_key_rows(problem, {"d_v", d_v});
            const BackwardTensors tensors{*q, *k, *v, *out, *lse, *d_out, d_lse, *d_q, *d_k, *d_v};
            call.run(
                problem, {.backward = &tensors},
                {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}, {"d_out", d_out}, {"d_lse", d_lse}},
                {{"d_q", d_q}, {"d_k", d_k}, {"d_v", d_v}},
                [&](const Engine &engine, const Plan &plan, Workspace &workspace, const Resources &resources) {
                    engine.backward(plan, tensors, workspace, resources);
                },
                [&](const RingPlan &plan, Workspace &workspace, const RingResources &resources) {
                    ring_backward(plan, tensors, workspace, resources);
                });
        });
    });
}
