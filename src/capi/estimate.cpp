// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h and annulus/comm.h: what a problem costs, and who computes it.
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

using namespace annulus;

namespace {

// How often a call of a pass calls an engine.
std::int64_t rounds_of(annulus_pass pass, const Problem &problem) {
    return pass == ANNULUS_PASS_MASS ? mass_rounds(problem.heads / problem.kv_heads, problem.head_dim) : 1;
}

// The FLOPs that a (query, key) pair takes for each of the D elements: two for each matrix product of the pass.
double flops_of_element(annulus_pass pass, const Problem &problem) {
    const int products = pass == ANNULUS_PASS_BACKWARD ? 5 : 2;
    return 2.0 * products * static_cast<double>(rounds_of(pass, problem));
}

// The bytes of the tensors that a pass reads and writes, as far as they lie in the problem's windows.
std::uint64_t tensor_bytes(annulus_pass pass, const Problem &problem) {
    const auto elements = [&](std::int64_t rows) { return static_cast<std::uint64_t>(rows * problem.head_dim); };
    const std::int64_t query_rows = problem.batch * problem.queries.length * problem.heads;
    const std::int64_t key_rows = problem.batch * problem.keys.length * problem.kv_heads;
    const std::uint64_t queries = elements(query_rows), keys = elements(key_rows);
    const auto of_element = static_cast<std::uint64_t>(dtype_bytes(problem.dtype));
    const auto of_statistic = static_cast<std::uint64_t>(dtype_bytes(sum_dtype(problem.dtype)));
    const auto of_gradient = [&](const GradientTarget &target) {
        return static_cast<std::uint64_t>(dtype_bytes(target.dtype(problem.dtype)));
    };
    std::uint64_t bytes = (queries + keys) * of_element + static_cast<std::uint64_t>(query_rows) * of_statistic;
    if (pass == ANNULUS_PASS_MASS) // Q, K, LSE and the masses
        return bytes + static_cast<std::uint64_t>(problem.batch * problem.keys.length * problem.heads) * of_statistic;
    bytes += (queries + keys) * of_element; // O and V
    if (pass == ANNULUS_PASS_BACKWARD)
        bytes += queries * (of_element + of_gradient(problem.gradients.q)) + // dO and dQ
                 keys * (of_gradient(problem.gradients.k) + of_gradient(problem.gradients.v));
    return bytes;
}

// The bytes that a caller must provide for a call whose tensors' rows begin at multiples of `row_alignment` bytes.
template <class Calls>
std::uint64_t workspace_bytes(Calls &calls, annulus_pass pass, std::int64_t row_alignment, const CallSetting &setting) {
    return CallMemory::announced(setting.own_bytes + calls.most_workspace(engine_pass(pass), row_alignment, setting));
}

void estimate_traffic(annulus_estimate &, const SequencePlans &, annulus_pass) {}

void estimate_traffic(annulus_estimate &estimate, const RankPlans &plans, annulus_pass pass) {
    const std::int64_t rounds = rounds_of(pass, plans.rows());
    const auto in_all_rounds = [&](std::uint64_t bytes) {
        if (__builtin_mul_overflow(bytes, rounds, &bytes))
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "the rows that a rank would exchange with the others in %lld rounds are more than 64 bits can "
                        "count",
                        static_cast<long long>(rounds));
        return bytes;
    };
    estimate.sent_bytes = in_all_rounds(plans.sent_bytes(engine_pass(pass)));
    estimate.received_bytes = in_all_rounds(plans.received_bytes(engine_pass(pass)));
    estimate.exchange = plans.ranks() > 1 ? plans.exchange() : ANNULUS_EXCHANGE_AUTO;
}

// Fills in all fields but the size. The problem's windows are those of the call.
template <class Calls>
void estimate_calls(annulus_estimate &estimate, Calls &calls, const StatedProblem &stated, annulus_pass pass,
                    std::int32_t branch, const CallSetting &setting) {
    const Problem &problem = stated.problem.rows;
    estimate.pairs = calls.plan().pairs(branch);
    estimate.flops = flops_of_element(pass, problem) * estimate.pairs * problem.head_dim;
    estimate.tensor_bytes = tensor_bytes(pass, problem);
    estimate.workspace_bytes = workspace_bytes(calls, pass, stated.row_alignment, setting);
    estimate.plan_bytes = calls.plan().bytes();
    estimate_traffic(estimate, calls.plan(), pass);
}

// Calls use(calls, setting) with the context's calls of the problem. With ranks its windows become this rank's.
template <class Use>
void with_calls(annulus_context &context, CallProblem &problem, annulus_pass pass, const Use &use) {
    if (!context.comm) {
        const CallSetting setting = context.setting(own_bytes(pass, problem.rows));
        use(context.whole_calls(problem, setting.limits), setting);
        return;
    }
    const Shards shards = context.shards_of(problem.rows.sequence_length);
    problem.rows.queries = problem.rows.keys = shards.window_of(context.comm->rank());
    const CallSetting setting = context.setting(own_bytes(pass, problem.rows));
    use(context.rank_calls(problem, shards, setting.limits, estimate_steps), setting);
}

// Returns the shards that the caller gives, or shards as equal as can be where the arrays are missing. Throws where
// their lengths do not add up to the sequence length.
Shards shards_of(const annulus_shards &given, std::int64_t sequence_length) {
    check_between("ranks of shards", given.ranks, 1, max_ranks);
    const bool are_given = given.count != 0 || given.lengths || given.owners;
    Shards shards = are_given ? checked_shards(given) : make_shards(even_lengths(sequence_length, given.ranks));
    if (shards.length() != sequence_length)
        throw Error(ANNULUS_ERROR_ARGUMENT, "lengths of shards add up to %lld; sequence_length of problem is %lld",
                    static_cast<long long>(shards.length()), static_cast<long long>(sequence_length));
    return shards;
}

// What every engine takes, where nothing is known of a call's tensors.
constexpr std::int64_t enough_alignment = 16;

// The engine of a call of the context, if its config named `engine`.
annulus_engine select_engine(annulus_context &context, const annulus_problem *problem, annulus_pass pass,
                             annulus_engine engine) {
    StatedProblem stated = check_problem(problem, context.required_config().pattern, pass, context.comm != nullptr);
    const std::int64_t alignment = stated.row_alignment == 0 ? enough_alignment : stated.row_alignment;
    annulus_engine selected = engine;
    with_calls(context, stated.problem, pass, [&](auto &calls, CallSetting setting) {
        setting.engine = engine;
        selected = calls.select_engine(engine_pass(pass), alignment, setting).id;
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
        with_calls(*context, stated.problem, pass, [&](auto &calls, const CallSetting &setting) {
            estimate_calls(result, calls, stated, pass, branch, setting);
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
        with_calls(*context, stated.problem, pass, [&](auto &calls, const CallSetting &setting) {
            *bytes = workspace_bytes(calls, pass, stated.row_alignment, setting);
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
        const Shards all = shards_of(given, rows.sequence_length);
        check_between("rank", rank, 0, given.ranks - 1);
        annulus_estimate result = read_sized("estimate", estimate, &annulus_estimate::exchange);
        rows.queries = rows.keys = all.window_of(rank);
        RankCalls calls(config.pattern, stated.problem, all, rank, config.execution.exchange, estimate_steps);
        estimate_calls(result, calls, stated, pass, ANNULUS_ALL_BRANCHES, context->setting(own_bytes(pass, rows)));
        write_sized(estimate, result);
    });
}
