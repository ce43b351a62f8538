// SPDX-License-Identifier: Apache-2.0
#include "call/context.hpp"

#include "call/call_memory.hpp"
#include "core/argument.hpp"
#include "core/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <memory>

using namespace annulus;

const annulus_config &annulus_context::required_config() const {
    if (!config)
        throw Error(ANNULUS_ERROR_ARGUMENT, "context has no config; annulus_context_set_config() gives it one");
    return *config;
}

int annulus_context::thread_limit() const {
    if (backend->device != ANNULUS_DEVICE_CPU)
        return 1;
    if (const int said = threads > 0 ? threads : default_threads; said > 0)
        return said;
    return std::min(allowed_cpus(), cpu_quota);
}

ExecutionSetting annulus_context::setting() const {
    const Execution &execution = required_config().execution;
    const Limits limits{thread_limit(), CallMemory::bookable(execution.workspace_limit), execution.allow_tf32};
    ExecutionSetting setting{*backend, *device, execution.engine, limits, execution.workspace_limit};
    if (comm)
        setting.links = {&comm->transport(), message_copier.get()};
    return setting;
}

LocalPlanned &annulus_context::plan_alone(const CallProblem &problem, const Limits &limits) {
    return executables.local.get({problem, limits},
                                 [&] { return std::make_unique<LocalPlanned>(required_config().pattern, problem); });
}

RankPlanned &annulus_context::plan_rank(CallProblem problem, const Shards &of_ranks, const Limits &limits,
                                        std::int64_t max_steps) {
    const int rank = comm->rank();
    problem.rows.sequence_length = of_ranks.length();
    problem.rows.queries = problem.rows.keys = of_ranks.window_of(rank);
    check_element_count(problem.rows);
    return executables.distributed.get({problem, of_ranks, limits}, [&] {
        const annulus_config &own = required_config();
        return std::make_unique<RankPlanned>(own.pattern, problem, of_ranks, rank, own.execution.exchange, max_steps);
    });
}

bool annulus::is_idle(const annulus_context &context) {
    return context.user == 0 && (context.maker == 0 || context.maker == getpid());
}

ContextUse::ContextUse(const annulus_context *context) : context_(required(context, "context")) {
    const pid_t here = getpid();
    if (context_.maker != 0 && context_.maker != here)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "context was made by process %d, which this one was forked from; CUDA does not survive fork(), so "
                    "here it can only be destroyed",
                    static_cast<int>(context_.maker));
    pid_t user = 0;
    if (context_.user.compare_exchange_strong(user, here))
        return;
    if (user == here)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "context is in a call; until that has returned, neither the functions of its allocator nor another "
                    "thread may use it");
    throw Error(ANNULUS_ERROR_ARGUMENT,
                "context was in a call of process %d when this one was forked; here it can only be destroyed",
                static_cast<int>(user));
}

ContextUse::~ContextUse() {
    context_.user = 0;
}
