// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/plan_estimates.hpp"

#include "cli/commands/context.hpp"
#include "cli/report/progress.hpp"

#include <cstddef>
#include <optional>

namespace annulus::cli {

namespace {

// The contexts that estimate. `all` has every branch, and so has `unlimited`, which has no workspace limit. With
// several ranks `alone` has a context for each branch, which estimates the branch's pairs and the rows that it needs of
// other ranks. With one rank `alone` and `unlimited` are empty.
struct PlanContexts {
    annulus_context *all;
    std::optional<Context> owned; // `all`, unless that is the caller's
    std::optional<Context> unlimited;
    std::vector<Context> alone;
};

PlanContexts make_contexts(annulus_context *all, const PlannedJob &job, const Shards &shards) {
    PlanContexts contexts{all, {}, {}, {}};
    if (shards.ranks() == 1)
        return contexts;
    ExecutionOptions execution = job.execution;
    // Finds the choice of `auto` once and not again for each rank.
    execution.exchange = exchange_name(estimate_of_rank(all, job.problem, ANNULUS_PASS_FORWARD, shards, 0).exchange);
    contexts.owned = make_context(job.pattern, execution, job.problem.heads);
    contexts.all = contexts.owned->get();
    execution = without_limit(execution);
    contexts.unlimited = make_context(job.pattern, execution, job.problem.heads);
    execution.exchange = exchange_name(ANNULUS_EXCHANGE_GATHER);
    for (const Config &config : job.pattern.one_by_one(job.problem.heads))
        contexts.alone.push_back(make_context(config.get(), execution));
    return contexts;
}

annulus_estimate estimate_of_branch(const PlanContexts &contexts, const annulus_problem &problem, const Shards &shards,
                                    std::int32_t rank, std::size_t branch) {
    if (contexts.alone.empty())
        return estimate_of(contexts.all, problem, ANNULUS_PASS_FORWARD, static_cast<std::int32_t>(branch));
    return estimate_of_rank(contexts.alone[branch].get(), problem, ANNULUS_PASS_FORWARD, shards, rank);
}

} // namespace

annulus_estimate estimate_of_rank(annulus_context *context, const annulus_problem &problem, annulus_pass pass,
                                  const Shards &shards, std::int32_t rank) {
    const annulus_shards view = shards.view();
    if (view.ranks == 1)
        return estimate_of(context, problem, pass);
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    check(annulus_estimate_rank(context, &problem, pass, &view, rank, &estimate));
    return estimate;
}

std::uint64_t float32_message_bytes(annulus_context *context, annulus_problem problem, const Shards &shards,
                                    std::int32_t rank) {
    if (shards.ranks() == 1)
        return 0;
    problem.dtype = problem.gradient_dtype = ANNULUS_FLOAT32;
    return estimate_of_rank(context, problem, ANNULUS_PASS_BACKWARD, shards, rank).workspace_bytes;
}

ExecutionOptions without_limit(ExecutionOptions execution) {
    execution.workspace_limit = 0;
    return execution;
}

std::vector<RankEstimates> estimate_ranks(annulus_context *context, const PlannedJob &job, const Shards &shards) {
    const PlanContexts contexts = make_contexts(context, job, shards);
    const std::size_t branches = job.pattern.labels(job.problem.heads).size();
    Progress progress(shards.ranks());
    std::vector<RankEstimates> ranks;
    for (std::int32_t rank = 0; rank < shards.ranks(); ++rank) {
        progress.begin(1);
        RankEstimates &own = ranks.emplace_back();
        own.forward = estimate_of_rank(contexts.all, job.problem, ANNULUS_PASS_FORWARD, shards, rank);
        own.backward = estimate_of_rank(contexts.all, job.problem, ANNULUS_PASS_BACKWARD, shards, rank);
        own.float32_message_bytes =
            contexts.unlimited ? float32_message_bytes(contexts.unlimited->get(), job.problem, shards, rank) : 0;
        own.rows = shards.rows(rank);
        for (std::size_t i = 0; i < branches; ++i) {
            const annulus_estimate part = estimate_of_branch(contexts, job.problem, shards, rank, i);
            own.branch_pairs.push_back(part.pairs);
            own.branch_received.push_back(part.received_bytes);
        }
    }
    return ranks;
}

} // namespace annulus::cli
