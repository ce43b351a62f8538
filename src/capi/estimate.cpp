// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h and annulus/comm.h: what a problem costs.
#include <annulus/attention.h>
#include <annulus/comm.h>

#include "call/call_memory.hpp"
#include "call/comm.hpp"
#include "call/context.hpp"
#include "call/mass_call.hpp"
#include "capi/guard.hpp"
#include "capi/problem.hpp"
#include "capi/shards.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"
#include "core/dtype_number.hpp"

#include <cstdint>
#include <utility>

using namespace annulus;

namespace {

// What a caller must provide for a call whose tensors' rows are aligned so.
template <class Calls>
std::size_t announced_bytes(Calls &calls, annulus_pass pass, std::int64_t row_alignment, const CallSetting &setting) {
    return CallMemory::announced(setting.own_bytes + calls.most_workspace(engine_pass(pass), row_alignment, setting));
}

// The calls of a context with a communicator, whose shard the problem's windows must be.
RankCalls &rank_calls(annulus_context &context, const CallProblem &problem, const Limits &limits) {
    context.check_shard(problem.rows);
    const Shards shards = context.shards_in(problem.rows.sequence_length);
    return context.rank_calls(problem, shards, limits, estimate_steps);
}

// use(plans) with the plans of the problem's windows or, in a context with a communicator, of its rank.
template <class Use> auto with_plans(annulus_context &context, const CallProblem &problem, const Use &use) {
    const Limits limits = context.setting().limits;
    return context.comm ? use(rank_calls(context, problem, limits).plan())
                        : use(context.whole_calls(problem, limits).plan());
}

// The workspace of a call of the context, with its ranks if it has any.
std::size_t announced_bytes(annulus_context &context, const StatedProblem &stated, annulus_pass pass) {
    const auto &[problem, row_alignment] = stated;
    const CallSetting setting = context.setting(own_bytes(pass, problem.rows));
    if (!context.comm)
        return announced_bytes(context.whole_calls(problem, setting.limits), pass, row_alignment, setting);
    return announced_bytes(rank_calls(context, problem, setting.limits), pass, row_alignment, setting);
}

} // namespace

annulus_status annulus_estimate_problem(annulus_context *context, const annulus_problem *problem, int32_t branch,
                                        annulus_estimate *estimate) {
    return guard([&] {
        const ContextUse use(context);
        const annulus_config &config = context->required_config();
        const StatedProblem stated = check_problem(problem, *context, ANNULUS_PASS_BACKWARD);
        const Problem &checked = stated.problem.rows;
        const auto branches = static_cast<std::int64_t>(config.pattern.branches.size());
        check_between("branch", branch, ANNULUS_ALL_BRANCHES, branches - 1);
        annulus_estimate result = read_sized("estimate", estimate, &annulus_estimate::plan_bytes);

        const std::int64_t query_elements = checked.batch * checked.queries.length * checked.heads * checked.head_dim;
        const std::int64_t key_elements = checked.batch * checked.keys.length * checked.kv_heads * checked.head_dim;
        const auto gradient_bytes = [&](const GradientTarget &target, std::int64_t elements) {
            return static_cast<std::uint64_t>(elements * dtype_bytes(target.dtype(checked.dtype)));
        };
        const auto row_bytes =
            static_cast<std::uint64_t>(2 * (query_elements + key_elements) * dtype_bytes(checked.dtype));
        const auto statistic_bytes =
            static_cast<std::uint64_t>(query_elements / checked.head_dim * dtype_bytes(sum_dtype(checked.dtype)));
        const auto [pairs, remote_bytes] = with_plans(*context, stated.problem, [&](const auto &plans) {
            return std::pair(plans.pairs(branch), plans.remote_bytes(branch));
        });
        result.pairs = pairs;
        result.forward_flops = 4.0 * result.pairs * checked.head_dim;
        result.backward_flops = 10.0 * result.pairs * checked.head_dim;
        result.tensor_bytes = row_bytes + statistic_bytes;
        result.gradient_bytes = static_cast<std::uint64_t>(query_elements * dtype_bytes(checked.dtype)) +
                                gradient_bytes(checked.gradients.q, query_elements) +
                                gradient_bytes(checked.gradients.k, key_elements) +
                                gradient_bytes(checked.gradients.v, key_elements);
        result.forward_workspace_bytes = announced_bytes(*context, stated, ANNULUS_PASS_FORWARD);
        result.backward_workspace_bytes = announced_bytes(*context, stated, ANNULUS_PASS_BACKWARD);
        if (remote_bytes >= 0x1p64)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "the rows outside the key window that all branches want are more bytes than 64 bits can count");
        result.remote_bytes = static_cast<std::uint64_t>(remote_bytes);
        result.plan_bytes = context->whole_calls(stated.problem, context->setting().limits).plan().bytes();
        write_sized(estimate, result);
    });
}

annulus_status annulus_workspace_size(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                      uint64_t *bytes) {
    return guard([&] {
        const ContextUse use(context);
        context->required_config();
        check_enum("pass", pass, ANNULUS_PASS_FORWARD, ANNULUS_PASS_MASS);
        required(bytes, "bytes");
        *bytes = announced_bytes(*context, check_problem(problem, *context, pass), pass);
    });
}

annulus_status annulus_estimate_rank(annulus_context *context, const annulus_problem *problem, const int64_t *lengths,
                                     const int32_t *owners, int32_t count, int32_t ranks, int32_t rank,
                                     annulus_rank_estimate *estimate) {
    return guard([&] {
        const ContextUse use(context);
        const annulus_config &config = context->required_config();
        const auto [stated, row_alignment] =
            check_problem(problem, *context, ANNULUS_PASS_BACKWARD, Asked::rank_of_others);
        const Problem &checked = stated.rows;
        check_between("ranks", ranks, 1, max_ranks);
        check_between("rank", rank, 0, ranks - 1);
        annulus_rank_estimate result =
            read_sized("estimate", estimate, &annulus_rank_estimate::backward_received_bytes);
        if (!lengths && !owners && count != 0)
            check_between("count", count, ranks, ranks);
        const Shards shards = lengths || owners ? checked_shards(lengths, owners, count, ranks)
                                                : make_shards(even_lengths(checked.sequence_length, ranks));
        if (const std::int64_t sum = shards.length(); sum != checked.sequence_length)
            throw Error(ANNULUS_ERROR_ARGUMENT, "lengths add up to %lld; sequence_length of problem is %lld",
                        static_cast<long long>(sum), static_cast<long long>(checked.sequence_length));
        RankCalls calls(config.pattern, stated, shards, rank, config.execution.exchange, estimate_steps);
        const RankPlans &plan = calls.plan();
        result.exchange = plan.exchange();
        const CallSetting setting = context->setting();
        result.forward_workspace_bytes = announced_bytes(calls, ANNULUS_PASS_FORWARD, row_alignment, setting);
        result.backward_workspace_bytes = announced_bytes(calls, ANNULUS_PASS_BACKWARD, row_alignment, setting);
        result.forward_sent_bytes = plan.sent_bytes(ANNULUS_PASS_FORWARD);
        result.forward_received_bytes = plan.received_bytes(ANNULUS_PASS_FORWARD);
        result.backward_sent_bytes = plan.sent_bytes(ANNULUS_PASS_BACKWARD);
        result.backward_received_bytes = plan.received_bytes(ANNULUS_PASS_BACKWARD);
        write_sized(estimate, result);
    });
}
