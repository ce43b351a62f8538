// SPDX-License-Identifier: Apache-2.0
#include "call/service.hpp"

#include "core/error.hpp"

namespace annulus {

namespace {

const Engine &engine_for(const annulus_context &context, const Plan &plan, annulus_pass pass,
                         const CallTensors &tensors, const Resources &resources) {
    return choose_engine(context.kind, context.required_config().execution.engine, plan, pass, tensors, resources);
}

const Engine &ring_engine_for(const annulus_context &context, const RingPlan &plan, annulus_pass pass,
                              const CallTensors &tensors, const Resources &resources) {
    const Engine &engine = engine_for(context, plan.local(), pass, tensors, resources);
    if (!engine.step_bytes)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s computes on one rank only", engine_name(engine.id));
    return engine;
}

} // namespace

Service::Service(const annulus_context &context, const Plan &plan, annulus_pass pass, const CallTensors &tensors)
    : resources(context.resources()), engine(engine_for(context, plan, pass, tensors, resources)),
      workspace_bytes(engine.workspace_bytes(plan, pass, resources)) {
    check_limit(context);
}

Service::Service(const annulus_context &context, const RingPlan &plan, annulus_pass pass, const CallTensors &tensors)
    : resources(context.resources()), engine(ring_engine_for(context, plan, pass, tensors, resources)),
      workspace_bytes(ring_bytes(plan, pass, engine, resources)) {
    check_limit(context);
}

void Service::check_limit(const annulus_context &context) const {
    const std::uint64_t limit = context.required_config().execution.workspace_limit;
    if (limit != 0 && announced() > limit)
        throw Error(ANNULUS_ERROR_MEMORY,
                    "engine %s needs %zu bytes of workspace for this; the config's workspace limit is %llu",
                    engine_name(engine.id), announced(), static_cast<unsigned long long>(limit));
}

} // namespace annulus
