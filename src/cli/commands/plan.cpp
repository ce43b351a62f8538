// SPDX-License-Identifier: Apache-2.0
// annulus plan: estimates what a problem costs, on one rank or on several that share the sequence.
#include "cli/arrays/output_file.hpp"
#include "cli/commands/commands.hpp"
#include "cli/commands/context.hpp"
#include "cli/commands/pattern_picture.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/report.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

struct PlanOptions {
    ProblemOptions problem;
    std::int32_t ranks = 1;
    Sharding sharding = Sharding::even;
    std::string svg; // path; empty: no picture
    std::string format = "text";
    PatternOptions pattern;
    ExecutionOptions execution;
};

// Adds up a quantity over the ranks and keeps its extremes.
template <class Number> struct Sum {
    Number total{}, largest{};
    Number smallest = std::numeric_limits<Number>::max();
    void add(Number value) {
        total += value;
        largest = std::max(largest, value);
        smallest = std::min(smallest, value);
    }
};

using Bytes = Sum<std::uint64_t>;

// What one branch costs the ranks.
struct Work {
    Sum<double> pairs;
    Bytes received; // in forward, if the pattern had this branch alone
};

// What one pass costs the ranks.
struct PassCost {
    Sum<double> flops;
    Bytes workspace, memory, sent, received; // memory: tensors and workspace together
};

struct Cost {
    PassCost forward, backward;
    std::vector<Work> branches;
    annulus_exchange exchange;
    Sum<std::int64_t> rows;
    Bytes tensors, gradients;
};

annulus_estimate estimate_of_rank(annulus_context *context, const annulus_problem &problem, annulus_pass pass,
                                  const Shards &shards, std::int32_t rank) {
    const annulus_shards view = shards.view();
    if (view.ranks == 1)
        return estimate_of(context, problem, pass);
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    check(annulus_estimate_rank(context, &problem, pass, &view, rank, &estimate));
    return estimate;
}

// The contexts that estimate. `all` has every branch. With several ranks `alone` has a context for each branch, which
// estimates the branch's pairs and the rows that it needs of other ranks. With one rank `alone` is empty.
struct PlanContexts {
    Context all;
    std::vector<Context> alone;
};

PlanContexts make_contexts(Context all, const PlanOptions &options, const annulus_problem &problem,
                           const Shards &shards) {
    PlanContexts contexts{std::move(all), {}};
    if (options.ranks == 1)
        return contexts;
    ExecutionOptions execution = options.execution;
    // Finds the choice of `auto` once and not again for each rank.
    execution.exchange =
        exchange_name(estimate_of_rank(contexts.all.get(), problem, ANNULUS_PASS_FORWARD, shards, 0).exchange);
    contexts.all = make_context(options.pattern, execution, problem.heads);
    execution.exchange = exchange_name(ANNULUS_EXCHANGE_GATHER);
    execution.workspace_limit = 0;
    for (const Config &config : options.pattern.one_by_one(problem.heads))
        contexts.alone.push_back(make_context(config.get(), execution));
    return contexts;
}

annulus_estimate estimate_of_branch(const PlanContexts &contexts, const annulus_problem &problem, const Shards &shards,
                                    std::int32_t rank, std::size_t branch) {
    if (contexts.alone.empty())
        return estimate_of(contexts.all.get(), problem, ANNULUS_PASS_FORWARD, static_cast<std::int32_t>(branch));
    return estimate_of_rank(contexts.alone[branch].get(), problem, ANNULUS_PASS_FORWARD, shards, rank);
}

void add_pass(PassCost &cost, const annulus_estimate &estimate) {
    cost.flops.add(estimate.flops);
    cost.workspace.add(estimate.workspace_bytes);
    cost.memory.add(estimate.tensor_bytes + estimate.workspace_bytes);
    cost.sent.add(estimate.sent_bytes);
    cost.received.add(estimate.received_bytes);
}

void add_rank(Cost &cost, const PlanContexts &contexts, const annulus_problem &problem, const Shards &shards,
              std::int32_t rank) {
    for (std::size_t i = 0; i < cost.branches.size(); ++i) {
        const annulus_estimate part = estimate_of_branch(contexts, problem, shards, rank, i);
        cost.branches[i].pairs.add(part.pairs);
        cost.branches[i].received.add(part.received_bytes);
    }
    const auto estimate_pass = [&](annulus_pass pass) {
        return estimate_of_rank(contexts.all.get(), problem, pass, shards, rank);
    };
    const annulus_estimate forward = estimate_pass(ANNULUS_PASS_FORWARD),
                           backward = estimate_pass(ANNULUS_PASS_BACKWARD);
    add_pass(cost.forward, forward);
    add_pass(cost.backward, backward);
    cost.exchange = forward.exchange;
    cost.tensors.add(forward.tensor_bytes);
    cost.gradients.add(backward.tensor_bytes - forward.tensor_bytes);
    cost.rows.add(shards.rows(rank));
}

// Returns the engine that would compute a pass on one rank. With several ranks each rank chooses an engine for its own
// part.
Cell engine_cell(annulus_context *context, const annulus_problem &problem, annulus_pass pass, std::int32_t ranks) {
    if (ranks > 1)
        return missing_cell();
    annulus_engine engine = ANNULUS_ENGINE_AUTO;
    check(annulus_select_engine(context, &problem, pass, &engine));
    return text_cell(annulus_engine_name(engine));
}

Facts problem_facts(annulus_context *context, const annulus_problem &problem, std::int32_t ranks, const Cost &cost) {
    return {"problem",
            "Problem",
            {{{"tokens", "tokens N"}, count_cell(problem.sequence_length)},
             {{"ranks", "ranks"}, count_cell(ranks)},
             {{"tokens_per_rank", "tokens a rank, at most"}, count_cell(cost.rows.largest)},
             {{"exchange", "exchange"}, ranks > 1 ? text_cell(exchange_name(cost.exchange)) : missing_cell()},
             {{"batch", "batch B"}, count_cell(problem.batch)},
             {{"heads", "heads H"}, count_cell(problem.heads)},
             {{"kv_heads", "key/value heads G"}, count_cell(problem.kv_heads)},
             {{"head_dim", "head dimension D"}, count_cell(problem.head_dim)},
             {{"dtype", "dtype"}, text_cell(annulus_dtype_name(problem.dtype))},
             {{"forward_engine", "engine, forward"}, engine_cell(context, problem, ANNULUS_PASS_FORWARD, ranks)},
             {{"backward_engine", "engine, backward"}, engine_cell(context, problem, ANNULUS_PASS_BACKWARD, ranks)}}};
}

Table cost_table(const Cost &cost) {
    Table table{"cost",
                "Cost",
                {{"quantity", ""},
                 {"total", "all ranks"},
                 {"largest_rank", "largest rank"},
                 {"smallest_rank", "smallest rank"}},
                {}};
    const auto add = [&](const char *key, const char *title, const auto &sum, const auto &cell) {
        Cell name = text_cell(title);
        name.value = key;
        table.rows.push_back({name, cell(sum.total), cell(sum.largest), cell(sum.smallest)});
    };
    const auto flops_cell = [](double flops) { return scaled_cell(flops, "FLOP"); };
    add("tensor_bytes", "Q, K, V, O and LSE", cost.tensors, bytes_cell);
    add("gradient_bytes", "dO, dQ, dK and dV", cost.gradients, bytes_cell);
    add("forward_workspace_bytes", "workspace, forward", cost.forward.workspace, bytes_cell);
    add("backward_workspace_bytes", "workspace, backward", cost.backward.workspace, bytes_cell);
    add("forward_memory_bytes", "memory, forward", cost.forward.memory, bytes_cell);
    add("backward_memory_bytes", "memory, backward", cost.backward.memory, bytes_cell);
    add("forward_sent_bytes", "sent, forward", cost.forward.sent, bytes_cell);
    add("forward_received_bytes", "received, forward", cost.forward.received, bytes_cell);
    add("backward_sent_bytes", "sent, backward", cost.backward.sent, bytes_cell);
    add("backward_received_bytes", "received, backward", cost.backward.received, bytes_cell);
    add("forward_flops", "forward", cost.forward.flops, flops_cell);
    add("backward_flops", "backward", cost.backward.flops, flops_cell);
    return table;
}

Table branch_table(const Cost &cost, const std::vector<std::string> &labels) {
    Table table{"branches",
                "Branches",
                {{"branch", "branch"},
                 {"forward_flops", "forward"},
                 {"backward_flops", "backward"},
                 {"forward_flops_share", "share"},
                 {"received_bytes", "of other ranks"},
                 {"largest_rank_forward_flops", "forward, largest rank"},
                 {"largest_rank_received_bytes", "of others, largest rank"}},
                {}};
    double pairs = 0;
    for (const Work &work : cost.branches)
        pairs += work.pairs.total;
    // The FLOPs of a branch are all FLOPs times its share of the pairs.
    const auto flops_cell = [&](const PassCost &pass, double branch_pairs) {
        return scaled_cell(pairs > 0 ? pass.flops.total * branch_pairs / pairs : 0, "FLOP");
    };
    for (std::size_t i = 0; i < cost.branches.size(); ++i) {
        const auto &[branch_pairs, received] = cost.branches[i];
        Cell share = real_cell(pairs > 0 ? 100 * branch_pairs.total / pairs : 0, 1, " %");
        share.value = pairs > 0 ? branch_pairs.total / pairs : 0;
        table.rows.push_back({text_cell(labels[i]), flops_cell(cost.forward, branch_pairs.total),
                              flops_cell(cost.backward, branch_pairs.total), share, bytes_cell(received.total),
                              flops_cell(cost.forward, branch_pairs.largest), bytes_cell(received.largest)});
    }
    return table;
}

void plan(const PlanOptions &options) {
    const annulus_problem problem = options.problem.problem();
    const std::vector<std::string> labels = options.pattern.labels(problem.heads);
    Context all = make_context(options.pattern, options.execution, problem.heads);
    const Shards shards(all.get(), problem, options.ranks, options.sharding);
    const PlanContexts contexts = make_contexts(std::move(all), options, problem, shards);
    Cost cost{};
    cost.branches.resize(labels.size());
    for (std::int32_t rank = 0; rank < options.ranks; ++rank)
        add_rank(cost, contexts, problem, shards, rank);

    if (!options.svg.empty()) {
        const std::string caption = std::to_string(problem.sequence_length) + " tokens: " + joined(labels, " + ") +
                                    (options.pattern.causal ? ", causal" : "") +
                                    (options.ranks > 1 ? "; " + std::to_string(options.ranks) + " ranks" : "");
        const Config config = options.pattern.config(problem.heads);
        write_file("--svg", options.svg,
                   draw_pattern(config.get(), problem.sequence_length, problem.heads, shards, options.ranks, caption));
    }
    Report report;
    report.add(problem_facts(contexts.all.get(), problem, options.ranks, cost));
    report.add(cost_table(cost));
    report.add(branch_table(cost, labels));
    report.print(options.format);
}

} // namespace

void add_plan_command(CLI::App &program) {
    auto options = std::make_shared<PlanOptions>();
    Command command(
        program, "plan",
        "Say what N tokens on P ranks take: memory, bytes sent, FLOPs; and by branch FLOPs and the rows of K and V "
        "that it takes of other ranks, for each shard its own. Computes nothing.");
    options->problem.add_to(command, true);
    command.number<std::int32_t>("--ranks", options->ranks, 1, "P, 1 unless given", max_ranks)
        .value("P")
        .group("Problem");
    add_shards_option(command, options->sharding, true).group("Problem");
    options->pattern.add_to(command);
    options->execution.add_to(command);
    command
        .file("--svg", options->svg,
              "Draw which keys each query attends to, for up to 2048 tokens and 64 heads: of up to 128 tokens "
              "each pair, of more their mean in 128 x 128 cells or fewer; and of up to 64 shards the borders")
        .ends_in(".svg");
    add_format_option(command, options->format);
    command.example("annulus plan --tokens 1M --heads 16 --head-dim 64 --branch 2Ki:1 --branch 64Ki:32 --ranks 4");
    command.runs([options] { plan(*options); });
}

} // namespace annulus::cli
