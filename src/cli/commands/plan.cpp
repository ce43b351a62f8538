// SPDX-License-Identifier: Apache-2.0
// annulus plan: what a problem takes, on one rank or on several that share the sequence.
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
#include <vector>

namespace annulus::cli {

namespace {

struct PlanOptions {
    ProblemOptions problem;
    std::int32_t ranks = 1;
    Sharding sharding = Sharding::even;
    std::string svg; // a path; empty: no picture
    std::string format = "text";
    PatternOptions pattern;
    ExecutionOptions execution;
};

// Over the ranks.
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

struct Work {
    Sum<double> forward_flops, backward_flops;
    Bytes remote;
    void add(const annulus_estimate &estimate) {
        forward_flops.add(estimate.forward_flops);
        backward_flops.add(estimate.backward_flops);
        remote.add(estimate.remote_bytes);
    }
};

struct Cost {
    Sum<double> forward_flops, backward_flops;
    std::vector<Work> branches;
    annulus_exchange exchange;
    Sum<std::int64_t> rows;
    Bytes tensors, gradients, forward_workspace, backward_workspace;
    Bytes forward_memory, backward_memory; // everything a rank holds at a time
    Bytes forward_sent, forward_received, backward_sent, backward_received;
};

annulus_estimate estimate_of(annulus_context *context, const annulus_problem &problem, std::int32_t branch) {
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    check(annulus_estimate_problem(context, &problem, branch, &estimate));
    return estimate;
}

// One of several ranks.
annulus_rank_estimate estimate_of_rank(annulus_context *context, const annulus_problem &problem, const Shards &shards,
                                       std::int32_t ranks, std::int32_t rank) {
    annulus_rank_estimate estimate = ANNULUS_RANK_ESTIMATE_INIT;
    check(annulus_estimate_rank(context, &problem, shards.lengths(), shards.owners(), shards.count(), ranks, rank,
                                &estimate));
    return estimate;
}

// What a plan asks: a context of all branches and, of several ranks, one of each branch alone, for the rows that it
// wants of the others.
struct PlanContexts {
    Context all;
    std::vector<Context> alone;
};

PlanContexts make_contexts(const PlanOptions &options, const annulus_problem &problem, const Shards &shards) {
    ExecutionOptions execution = options.execution;
    PlanContexts contexts{make_context(options.pattern, execution, problem.heads), {}};
    if (options.ranks == 1)
        return contexts;
    // What `auto` comes to is found once and not for each rank again.
    execution.exchange =
        exchange_name(estimate_of_rank(contexts.all.get(), problem, shards, options.ranks, 0).exchange);
    contexts.all = make_context(options.pattern, execution, problem.heads);
    execution.exchange = exchange_name(ANNULUS_EXCHANGE_GATHER);
    execution.workspace_limit = 0;
    for (const Config &config : options.pattern.one_by_one(problem.heads))
        contexts.alone.push_back(make_context(config.get(), execution));
    return contexts;
}

// A branch of all positions that a rank holds.
annulus_estimate estimate_of_ranges(annulus_context *context, annulus_problem problem, const std::vector<Range> &ranges,
                                    std::int32_t branch) {
    annulus_estimate sum = ANNULUS_ESTIMATE_INIT;
    for (const Range &range : ranges) {
        problem.query_start = problem.key_start = range.start;
        problem.query_length = problem.key_length = range.length;
        const annulus_estimate part = estimate_of(context, problem, branch);
        sum.forward_flops += part.forward_flops;
        sum.backward_flops += part.backward_flops;
        sum.tensor_bytes += part.tensor_bytes;
        sum.gradient_bytes += part.gradient_bytes;
    }
    return sum;
}

void add_rank(Cost &cost, const PlanContexts &contexts, const annulus_problem &problem, const Shards &shards,
              std::int32_t ranks, std::int32_t rank) {
    annulus_estimate whole = ANNULUS_ESTIMATE_INIT;
    for (std::size_t i = 0; i < cost.branches.size(); ++i) {
        annulus_estimate part =
            estimate_of_ranges(contexts.all.get(), problem, shards.of(rank), static_cast<std::int32_t>(i));
        if (ranks > 1)
            part.remote_bytes =
                estimate_of_rank(contexts.alone[i].get(), problem, shards, ranks, rank).forward_received_bytes;
        cost.branches[i].add(part);
        const double forward_flops = whole.forward_flops, backward_flops = whole.backward_flops;
        whole = part;
        whole.forward_flops += forward_flops;
        whole.backward_flops += backward_flops;
    }
    cost.forward_flops.add(whole.forward_flops);
    cost.backward_flops.add(whole.backward_flops);
    cost.tensors.add(whole.tensor_bytes);
    cost.gradients.add(whole.gradient_bytes);
    annulus_rank_estimate estimate = ANNULUS_RANK_ESTIMATE_INIT;
    if (ranks > 1) {
        estimate = estimate_of_rank(contexts.all.get(), problem, shards, ranks, rank);
    } else { // sends nothing
        const annulus_estimate alone = estimate_of(contexts.all.get(), problem, ANNULUS_ALL_BRANCHES);
        estimate.forward_workspace_bytes = alone.forward_workspace_bytes;
        estimate.backward_workspace_bytes = alone.backward_workspace_bytes;
    }
    cost.exchange = estimate.exchange;
    cost.forward_workspace.add(estimate.forward_workspace_bytes);
    cost.backward_workspace.add(estimate.backward_workspace_bytes);
    cost.forward_memory.add(whole.tensor_bytes + estimate.forward_workspace_bytes);
    cost.backward_memory.add(whole.tensor_bytes + whole.gradient_bytes + estimate.backward_workspace_bytes);
    cost.forward_sent.add(estimate.forward_sent_bytes);
    cost.forward_received.add(estimate.forward_received_bytes);
    cost.backward_sent.add(estimate.backward_sent_bytes);
    cost.backward_received.add(estimate.backward_received_bytes);
    cost.rows.add(shards.rows(rank));
}

Facts problem_facts(const annulus_problem &problem, std::int32_t ranks, const Cost &cost) {
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
             {{"dtype", "dtype"}, text_cell(annulus_dtype_name(problem.dtype))}}};
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
    add("forward_workspace_bytes", "workspace, forward", cost.forward_workspace, bytes_cell);
    add("backward_workspace_bytes", "workspace, backward", cost.backward_workspace, bytes_cell);
    add("forward_memory_bytes", "memory, forward", cost.forward_memory, bytes_cell);
    add("backward_memory_bytes", "memory, backward", cost.backward_memory, bytes_cell);
    add("forward_sent_bytes", "sent, forward", cost.forward_sent, bytes_cell);
    add("forward_received_bytes", "received, forward", cost.forward_received, bytes_cell);
    add("backward_sent_bytes", "sent, backward", cost.backward_sent, bytes_cell);
    add("backward_received_bytes", "received, backward", cost.backward_received, bytes_cell);
    add("forward_flops", "forward", cost.forward_flops, flops_cell);
    add("backward_flops", "backward", cost.backward_flops, flops_cell);
    return table;
}

Table branch_table(const Cost &cost, const std::vector<std::string> &labels) {
    Table table{"branches",
                "Branches",
                {{"branch", "branch"},
                 {"forward_flops", "forward"},
                 {"backward_flops", "backward"},
                 {"forward_flops_share", "share"},
                 {"remote_bytes", "of other ranks"},
                 {"largest_rank_forward_flops", "forward, largest rank"},
                 {"largest_rank_remote_bytes", "of others, largest rank"}},
                {}};
    const double whole = cost.forward_flops.total;
    for (std::size_t i = 0; i < cost.branches.size(); ++i) {
        const Work &work = cost.branches[i];
        Cell share = real_cell(whole > 0 ? 100 * work.forward_flops.total / whole : 0, 1, " %");
        share.value = whole > 0 ? work.forward_flops.total / whole : 0;
        table.rows.push_back({text_cell(labels[i]), scaled_cell(work.forward_flops.total, "FLOP"),
                              scaled_cell(work.backward_flops.total, "FLOP"), share, bytes_cell(work.remote.total),
                              scaled_cell(work.forward_flops.largest, "FLOP"), bytes_cell(work.remote.largest)});
    }
    return table;
}

void plan(const PlanOptions &options) {
    const annulus_problem problem = options.problem.problem();
    const std::vector<std::string> labels = options.pattern.labels(problem.heads);
    const Shards shards(problem.sequence_length, options.ranks, options.sharding);
    const PlanContexts contexts = make_contexts(options, problem, shards);
    Cost cost{};
    cost.branches.resize(labels.size());
    for (std::int32_t rank = 0; rank < options.ranks; ++rank)
        add_rank(cost, contexts, problem, shards, options.ranks, rank);

    if (!options.svg.empty()) {
        const std::string caption = std::to_string(problem.sequence_length) + " tokens: " + joined(labels, " + ") +
                                    (options.pattern.causal ? ", causal" : "") +
                                    (options.ranks > 1 ? "; " + std::to_string(options.ranks) + " ranks" : "");
        const Config config = options.pattern.config(problem.heads);
        write_file("--svg", options.svg,
                   draw_pattern(config.get(), problem.sequence_length, problem.heads, shards, options.ranks, caption));
    }
    Report report;
    report.add(problem_facts(problem, options.ranks, cost));
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
        "that it takes of other ranks, for each part of a zigzag its own. Computes nothing.");
    options->problem.add_to(command, true);
    command.number<std::int32_t>("--ranks", options->ranks, 1, "P, 1 unless given", max_ranks)
        .value("P")
        .group("Problem");
    add_shards_option(command, options->sharding).group("Problem");
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
