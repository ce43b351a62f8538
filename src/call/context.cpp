// SPDX-License-Identifier: Apache-2.0
#include "call/context.hpp"

#include "call/call_memory.hpp"
#include "core/argument.hpp"
#include "core/error.hpp"

#include <unistd.h>

#include <algorithm>

using namespace annulus;

const annulus_config &annulus_context::required_config() const {
    if (!config)
        throw Error(ANNULUS_ERROR_ARGUMENT, "context has no config; annulus_context_set_config() gives it one");
    return *config;
}

int annulus_context::thread_limit() const {
    if (kind != ANNULUS_DEVICE_CPU)
        return 1;
    if (const int said = threads > 0 ? threads : default_threads; said > 0)
        return said;
    return std::min(allowed_cpus(), cpu_quota);
}

CallSetting annulus_context::setting(std::size_t own_bytes) const {
    const Execution &execution = required_config().execution;
    Limits limits{thread_limit(), CallMemory::bookable(execution.workspace_limit), execution.allow_tf32};
    if (limits.workspace_limit != 0)
        limits.workspace_limit = limits.workspace_limit > own_bytes ? limits.workspace_limit - own_bytes : 1;
    return {kind, *device, execution.engine, limits, execution.workspace_limit, own_bytes};
}

WholeCalls &annulus_context::whole_calls(const CallProblem &problem, const Limits &limits) {
    return calls.whole.get({problem, limits},
                           [&] { return std::make_unique<WholeCalls>(required_config().pattern, problem); });
}

void annulus_context::check_rows(std::int64_t rows) const {
    if (set_shards.pieces.empty())
        return;
    const int rank = comm->rank();
    const std::int64_t length = set_shards.rows_of(rank);
    if (rows != length)
        throw Error(ANNULUS_ERROR_ARGUMENT, "shape[1] of q is %lld; the shard of rank %d has %lld rows",
                    static_cast<long long>(rows), rank, static_cast<long long>(length));
}

Shards annulus_context::known_shards(std::int64_t rows) const {
    const Shards &known = set_shards.pieces.empty() ? agreed_shards : set_shards;
    return known.rows_of(comm->rank()) == rows ? known : Shards();
}

RankCalls &annulus_context::rank_calls(CallProblem problem, const Shards &shards, const Limits &limits,
                                       std::int64_t most_steps) {
    const int rank = comm->rank();
    problem.rows.sequence_length = shards.length();
    problem.rows.queries = problem.rows.keys = shards.window_of(rank);
    check_element_count(problem.rows);
    return calls.of_ranks.get({problem, shards, limits}, [&] {
        const annulus_config &own = required_config();
        return std::make_unique<RankCalls>(own.pattern, problem, shards, rank, own.execution.exchange, most_steps);
    });
}

Shards annulus_context::shards_of(std::int64_t sequence_length) const {
    if (!set_shards.pieces.empty()) {
        if (set_shards.length() != sequence_length)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "sequence_length of problem is %lld; the shards of all ranks have %lld rows, as "
                        "annulus_context_set_shards() was told",
                        static_cast<long long>(sequence_length), static_cast<long long>(set_shards.length()));
        return set_shards;
    }
    if (agreed_shards.length() == sequence_length)
        return agreed_shards;
    return make_shards(even_lengths(sequence_length, comm->size()));
}

std::vector<std::int64_t> annulus::even_lengths(std::int64_t sequence_length, std::int32_t ranks) {
    std::vector<std::int64_t> lengths;
    for (std::int32_t i = 0; i < ranks; ++i)
        lengths.push_back(sequence_length / ranks + (i < sequence_length % ranks));
    return lengths;
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

std::int64_t annulus::check_lengths(const std::vector<std::int64_t> &lengths) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const auto length = static_cast<long long>(lengths[i]);
        if (length < 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "lengths[%zu] is %lld; it must be at least 0", i, length);
        if (__builtin_add_overflow(sum, lengths[i], &sum))
            throw Error(ANNULUS_ERROR_ARGUMENT, "lengths[%zu] is %lld; the sum of all does not fit 64 bits", i, length);
    }
    if (sum == 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "all lengths are 0; at least one rank must hold a row");
    return sum;
}
