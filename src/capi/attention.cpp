// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h, the passes: from the caller's tensors to a checked problem, its plan, an engine and a workspace.
// Everything is checked before anything is written.
#include <annulus/attention.h>

#include "capi/argument.hpp"
#include "capi/comm.hpp"
#include "capi/context.hpp"
#include "capi/guard.hpp"
#include "capi/problem.hpp"
#include "capi/service.hpp"
#include "core/tensor.hpp"
#include "ring/agreement.hpp"

#include <cstdio>
#include <initializer_list>
#include <new>

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
    PassCall(annulus_context &context, annulus_pass pass) : context_(context), pass_(pass) {}

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
        const bool may_be_empty = !context_.shard_lengths.empty();
        return context_.place_shard(annulus::check_inputs(q, k, v, nullptr, may_be_empty));
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
        const RingPlan &plan = context_.ring_plan_for(problem);
        const Service service(context_, plan, pass_, tensors);
        const CallMemory memory(context_, service.workspace_bytes);
        Workspace workspace(memory.data());
        agree(plan, problem);
        together(plan, workspace,
                 RingResources{service.engine, service.resources, *context_.comm->transport, *context_.row_mover});
        context_.last_engine = service.engine.id;
        context_.sent_bytes = plan.sent_bytes(pass_);
        context_.received_bytes = plan.received_bytes(pass_);
    }

  private:
    bool can_speak() const {
        const DeviceScope scope(*context_.device);
        return context_.comm->transport->can_gather(*context_.device, context_.stream);
    }

    void agree(const RingPlan &plan, const Problem &problem) {
        Transport &transport = *context_.comm->transport;
        has_spoken_ = true;
        if (!transport.can_gather(*context_.device, context_.stream))
            return;
        const annulus_config &config = context_.required_config();
        try {
            annulus::agree(transport,
                           {pass_, config.pattern, config.execution.exchange, problem, plan.schedule().shards()});
        } catch (const std::bad_alloc &) { // before anything was sent
            has_spoken_ = false;
            throw;
        }
    }

    void tell_others(const char *message) const {
        if (context_.comm && !has_spoken_ && can_speak())
            decline(*context_.comm->transport, message);
    }

    annulus_context &context_;
    const annulus_pass pass_;
    bool has_spoken_ = false;
};

} // namespace

annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                               const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                               const annulus_window *window) {
    return guard([&] {
        PassCall(required(context, "context"), ANNULUS_PASS_FORWARD).carry_out([&](PassCall &call) {
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
        PassCall(required(context, "context"), ANNULUS_PASS_BACKWARD).carry_out([&](PassCall &call) {
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
