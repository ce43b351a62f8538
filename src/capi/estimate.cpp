// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h and annulus/comm.h: estimates of what a problem costs, and of the engine that computes it.
#include <annulus/attention.h>
#include <annulus/comm.h>

#include "call/call_memory.hpp"
#include "call/comm.hpp"
#include "call/context.hpp"
#include "capi/guard.hpp"
#include "capi/problem.hpp"
#include "capi/shards.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"
#include "core/dtype_number.hpp"
#include "engine/mass.hpp"
#include "ranks/balance.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

using namespace annulus;

namespace {

// Returns the FLOPs of a (query, key) pair: 2 D for each matrix product of the pass.
double flops_per_pair(annulus_pass pass, const Problem &problem) {
    const int products = pass == ANNULUS_PASS_BACKWARD ? 5 : 2;
    const std::int64_t rounds = pass == ANNULUS_PASS_MASS ? mass_rounds(problem) : 1;
    return 2.0 * products * static_cast<double>(rounds) * problem.head_dim;
}

// Returns the bytes of the tensors that a pass reads and writes, as far as they lie in the problem's windows.
std::uint64_t tensor_bytes(annulus_pass pass, const Problem &problem) {
    const auto elements = [&](std::int64_t rows) { return static_cast<std::uint64_t>(rows * problem.head_dim); };
    const std::int64_t query_rows = problem.batch * problem.queries.length * problem.heads;
    const std::int64_t key_rows = problem.batch * problem.keys.length * problem.kv_heads;
    const std::uint64_t queries = elements(query_rows), keys = elements(key_rows);
    const auto element_bytes = static_cast<std::uint64_t>(dtype_bytes(problem.dtype));
    const auto statistic_bytes = static_cast<std::uint64_t>(dtype_bytes(sum_dtype(problem.dtype)));
    const auto gradient_bytes = [&](const GradientTarget &target) {
        return static_cast<std::uint64_t>(dtype_bytes(target.dtype(problem.dtype)));
    };
    std::uint64_t bytes = (queries + keys) * element_bytes + static_cast<std::uint64_t>(query_rows) * statistic_bytes;
    if (pass == ANNULUS_PASS_MASS) // Q, K, LSE and the masses
        return bytes +
               static_cast<std::uint64_t>(problem.batch * problem.keys.length * problem.heads) * statistic_bytes;
    bytes += (queries + keys) * element_bytes; // O and V
    if (pass == ANNULUS_PASS_BACKWARD)
        bytes += queries * (element_bytes + gradient_bytes(problem.gradients.q)) + // dO and dQ
                 keys * (gradient_bytes(problem.gradients.k) + gradient_bytes(problem.gradients.v));
    return bytes;
}

// Returns the bytes of workspace that a caller must provide for tensors whose rows begin at multiples of
// `row_alignment` bytes.
std::uint64_t workspace_bytes(Executables &executables, annulus_pass pass, std::int64_t row_alignment,
                              const ExecutionSetting &setting) {
    return CallMemory::announced(executables.most_workspace(pass, row_alignment, setting));
}

void estimate_traffic(annulus_estimate &, const SequencePlans &, annulus_pass) {}

void estimate_traffic(annulus_estimate &estimate, const RankPlan &plans, annulus_pass pass) {
    estimate.sent_bytes = plans.sent_bytes(pass);
    estimate.received_bytes = plans.received_bytes(pass);
    estimate.received_messages = plans.received_messages();
    estimate.exchange = plans.ranks() > 1 ? plans.exchange() : ANNULUS_EXCHANGE_AUTO;
}

// Writes all fields except the size. The problem has the windows of the call.
template <class Plans>
void fill_estimate(annulus_estimate &estimate, Planned<Plans> &planned, const StatedProblem &stated, annulus_pass pass,
                   std::int32_t branch, const ExecutionSetting &setting) {
    const Problem &problem = stated.problem.rows;
    estimate.pairs = planned.plans.pairs(branch);
    estimate.flops = flops_per_pair(pass, problem) * estimate.pairs;
    estimate.tensor_bytes = tensor_bytes(pass, problem);
    estimate.workspace_bytes = workspace_bytes(planned.executables, pass, stated.row_alignment, setting);
    estimate.plan_bytes = planned.plans.bytes();
    estimate_traffic(estimate, planned.plans, pass);
}

// Calls use(planned, setting) with the context's plan of the problem. On several ranks the problem gets this rank's
// windows.
template <class Use> void with_plan(annulus_context &context, CallProblem &problem, const Use &use) {
    const ExecutionSetting setting = context.setting();
    if (!context.comm) {
        use(context.plan_alone(problem, setting.limits), setting);
        return;
    }
    const int rank = context.comm->rank();
    const Shards shards = context.shards.for_length(problem.rows.sequence_length, context.comm->size());
    problem.rows.queries = problem.rows.keys = shards.window_of(rank);
    use(context.plan_rank(problem, shards, setting.limits, estimate_planning_steps), setting);
}

// Returns the caller's shards, or even ones if the arrays are missing. Throws if the lengths do not add up to the
// sequence length.
Shards estimated_shards(const annulus_shards &given, std::int64_t sequence_length) {
    check_between("ranks of shards", given.ranks, 1, max_ranks);
    const bool are_given = given.count != 0 || given.lengths || given.owners;
    Shards shards = are_given ? checked_shards(given) : make_shards(even_lengths(sequence_length, given.ranks));
    if (shards.length() != sequence_length)
        throw Error(ANNULUS_ERROR_ARGUMENT, "lengths of shards add up to %lld; sequence_length of problem is %lld",
                    static_cast<long long>(shards.length()), static_cast<long long>(sequence_length));
    return shards;
}

// Every engine takes tensors with this row alignment, in bytes.
constexpr std::int64_t enough_alignment = 16;

// Returns the engine that a call of the context would come to if its config named `engine`.
annulus_engine select_engine(annulus_context &context, const annulus_problem *problem, annulus_pass pass,
                             annulus_engine engine) {
    StatedProblem stated = check_problem(problem, context.required_config().pattern, pass, context.comm != nullptr);
    const std::int64_t alignment = stated.row_alignment == 0 ? enough_alignment : stated.row_alignment;
    annulus_engine selected = engine;
    with_plan(context, stated.problem, [&](auto &planned, ExecutionSetting setting) {
        setting.engine = engine;
        selected = planned.executables.select_engine(pass, alignment, setting).id;
    });
    return selected;
}

} // namespace

annulus_status annulus_estimate_problem(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                        int32_t branch, annulus_estimate *estimate) {
    return guard([&] {
        const ContextUse use(context);
        const Pattern &pattern = context->required_config().pattern;
        check_enum("pass", pass);
        StatedProblem stated = check_problem(problem, pattern, pass, context->comm != nullptr);
        check_between("branch", branch, ANNULUS_ALL_BRANCHES, static_cast<std::int64_t>(pattern.branches.size()) - 1);
        annulus_estimate result = read_sized("estimate", estimate, &annulus_estimate::exchange);
        with_plan(*context, stated.problem, [&](auto &planned, const ExecutionSetting &setting) {
            fill_estimate(result, planned, stated, pass, branch, setting);
        });
        write_sized(estimate, result);
    });
}

annulus_status annulus_workspace_size(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                      uint64_t *bytes) {
    return guard([&] {
        const ContextUse use(context);
        const Pattern &pattern = context->required_config().pattern;
        check_enum("pass", pass);
        required(bytes, "bytes");
        StatedProblem stated = check_problem(problem, pattern, pass, context->comm != nullptr);
        with_plan(*context, stated.problem, [&](auto &planned, const ExecutionSetting &setting) {
            *bytes = workspace_bytes(planned.executables, pass, stated.row_alignment, setting);
        });
    });
}

annulus_status annulus_select_engine(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                     annulus_engine *engine) {
    return guard([&] {
        const ContextUse use(context);
        const annulus_config &config = context->required_config();
        check_enum("pass", pass);
        required(engine, "engine");
        *engine = select_engine(*context, problem, pass, config.execution.engine);
    });
}

annulus_status annulus_check_engine(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                    annulus_engine engine) {
    return guard([&] {
        const ContextUse use(context);
        context->required_config();
        check_enum("pass", pass);
        check_enum("engine", engine);
        select_engine(*context, problem, pass, engine);
    });
}

annulus_status annulus_estimate_rank(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                     const annulus_shards *shards, int32_t rank, annulus_estimate *estimate) {
    return guard([&] {
        const ContextUse use(context);
        const annulus_config &config = context->required_config();
        check_enum("pass", pass);
        StatedProblem stated = check_problem(problem, config.pattern, pass, true);
        Problem &rows = stated.problem.rows;
        const annulus_shards given = read_shards(shards);
        const Shards all = estimated_shards(given, rows.sequence_length);
        check_between("rank", rank, 0, given.ranks - 1);
        annulus_estimate result = read_sized("estimate", estimate, &annulus_estimate::exchange);
        rows.queries = rows.keys = all.window_of(rank);
        RankPlanned planned(config.pattern, stated.problem, all, rank, config.execution.exchange,
                            estimate_planning_steps);
        fill_estimate(result, planned, stated, pass, ANNULUS_ALL_BRANCHES, context->setting());
        write_sized(estimate, result);
    });
}

annulus_status annulus_balance_shards(annulus_context *context, const annulus_problem *problem, std::int32_t ranks,
                                      std::int32_t capacity, std::int64_t *lengths, std::int32_t *owners,
                                      std::int32_t *count) {
    return guard([&] {
        const ContextUse use(context);
        const Pattern &pattern = context->required_config().pattern;
        const StatedProblem stated = check_problem(problem, pattern, ANNULUS_PASS_FORWARD, true);
        check_between("ranks", ranks, 1, max_ranks);
        check_at_least("capacity", capacity, 1);
        required(lengths, "lengths");
        required(owners, "owners");
        required(count, "count");
        const Shards shards = balance_shards(pattern, stated.problem, ranks);
        const auto found = static_cast<std::int32_t>(shards.pieces.size());
        check_between("capacity", capacity, found, std::numeric_limits<std::int32_t>::max());
        std::ranges::transform(shards.pieces, lengths, &Window::length);
        std::ranges::copy(shards.owners, owners);
        *count = found;
    });
}
