// SPDX-License-Identifier: Apache-2.0
// annulus plan: what a problem takes, on one rank or on several that share the sequence.
#include "commands.hpp"
#include "options.hpp"
#include "report.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace annulus::cli {

namespace {

struct PlanOptions {
    ProblemOptions problem;
    std::int64_t ranks = 1;
    std::string format = "text";
    PatternOptions pattern;
    ExecutionOptions execution;
};

// Over the ranks.
template <class Number> struct Sum {
    Number total{}, largest{};
    void add(Number value) {
        total += value;
        largest = std::max(largest, value);
    }
};

struct Work {
    Sum<double> forward_flops, backward_flops;
    Sum<std::uint64_t> remote_bytes;
    void add(const annulus_estimate &estimate) {
        forward_flops.add(estimate.forward_flops);
        backward_flops.add(estimate.backward_flops);
        remote_bytes.add(estimate.remote_bytes);
    }
};

struct Cost {
    Work all;
    std::vector<Work> branches;
    Sum<std::uint64_t> tensors, gradients, forward_workspace, backward_workspace;
    Sum<std::uint64_t> forward_memory, backward_memory; // everything a rank holds at a time, received rows too
};

// The contiguous shard of a rank: the first N mod p ranks have one token more.
annulus_problem share(annulus_problem problem, std::int64_t rank, std::int64_t ranks) {
    const std::int64_t each = problem.sequence_length / ranks, more = problem.sequence_length % ranks;
    problem.query_start = problem.key_start = rank * each + std::min(rank, more);
    problem.query_length = problem.key_length = each + (rank < more ? 1 : 0);
    return problem;
}

annulus_estimate estimate_of(annulus_context *context, const annulus_problem &problem, std::int32_t branch) {
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    check(annulus_estimate_problem(context, &problem, branch, &estimate));
    return estimate;
}

void add_rank(Cost &cost, annulus_context *context, const annulus_problem &problem) {
    annulus_estimate whole = ANNULUS_ESTIMATE_INIT;
    for (std::size_t i = 0; i < cost.branches.size(); ++i) {
        const annulus_estimate part = estimate_of(context, problem, static_cast<std::int32_t>(i));
        cost.branches[i].add(part);
        whole.forward_flops += part.forward_flops;
        whole.backward_flops += part.backward_flops;
        whole.remote_bytes += part.remote_bytes;
        whole.tensor_bytes = part.tensor_bytes;
        whole.gradient_bytes = part.gradient_bytes;
        whole.forward_workspace_bytes = part.forward_workspace_bytes;
        whole.backward_workspace_bytes = part.backward_workspace_bytes;
    }
    cost.all.add(whole);
    cost.tensors.add(whole.tensor_bytes);
    cost.gradients.add(whole.gradient_bytes);
    cost.forward_workspace.add(whole.forward_workspace_bytes);
    cost.backward_workspace.add(whole.backward_workspace_bytes);
    const std::uint64_t held = whole.tensor_bytes + whole.remote_bytes;
    cost.forward_memory.add(held + whole.forward_workspace_bytes);
    cost.backward_memory.add(held + whole.gradient_bytes + whole.backward_workspace_bytes);
}

Cost cost_of(annulus_context *context, const annulus_problem &problem, std::size_t branches, std::int64_t ranks) {
    Cost cost;
    cost.branches.resize(branches);
    for (std::int64_t rank = 0; rank < ranks; ++rank)
        add_rank(cost, context, share(problem, rank, ranks));
    return cost;
}

Facts problem_facts(const annulus_problem &problem, std::int64_t ranks) {
    return {"problem",
            "Problem",
            {{{"tokens", "tokens N"}, count_cell(problem.sequence_length)},
             {{"ranks", "ranks"}, count_cell(ranks)},
             {{"tokens_per_rank", "tokens a rank, at most"}, count_cell(share(problem, 0, ranks).query_length)},
             {{"batch", "batch B"}, count_cell(problem.batch)},
             {{"heads", "heads H"}, count_cell(problem.heads)},
             {{"kv_heads", "key/value heads G"}, count_cell(problem.kv_heads)},
             {{"head_dim", "head dimension D"}, count_cell(problem.head_dim)},
             {{"dtype", "dtype"}, text_cell(annulus_dtype_name(problem.dtype))}}};
}

Table cost_table(const Cost &cost) {
    Table table{"cost", "Cost", {{"quantity", ""}, {"total", "all ranks"}, {"largest_rank", "largest rank"}}, {}};
    const auto add_bytes = [&](const char *key, const char *title, const Sum<std::uint64_t> &sum) {
        Cell name = text_cell(title);
        name.value = key;
        table.rows.push_back({name, bytes_cell(sum.total), bytes_cell(sum.largest)});
    };
    const auto add_flops = [&](const char *key, const char *title, const Sum<double> &sum) {
        Cell name = text_cell(title);
        name.value = key;
        table.rows.push_back({name, scaled_cell(sum.total, "FLOP"), scaled_cell(sum.largest, "FLOP")});
    };
    add_bytes("tensor_bytes", "Q, K, V, O and LSE", cost.tensors);
    add_bytes("gradient_bytes", "dO, dQ, dK and dV", cost.gradients);
    add_bytes("forward_workspace_bytes", "workspace, forward", cost.forward_workspace);
    add_bytes("backward_workspace_bytes", "workspace, backward", cost.backward_workspace);
    add_bytes("remote_bytes", "K and V rows received", cost.all.remote_bytes);
    add_bytes("forward_memory_bytes", "memory, forward", cost.forward_memory);
    add_bytes("backward_memory_bytes", "memory, backward", cost.backward_memory);
    add_flops("forward_flops", "forward", cost.all.forward_flops);
    add_flops("backward_flops", "backward", cost.all.backward_flops);
    return table;
}

Table branch_table(const Cost &cost, const std::vector<std::string> &labels) {
    Table table{"branches",
                "Branches",
                {{"branch", "branch"},
                 {"forward_flops", "forward"},
                 {"backward_flops", "backward"},
                 {"forward_flops_share", "share"},
                 {"remote_bytes", "received, all ranks"},
                 {"largest_rank_forward_flops", "forward, largest rank"},
                 {"largest_rank_remote_bytes", "received, largest rank"}},
                {}};
    const double whole = cost.all.forward_flops.total;
    for (std::size_t i = 0; i < cost.branches.size(); ++i) {
        const Work &work = cost.branches[i];
        Cell share = real_cell(whole > 0 ? 100 * work.forward_flops.total / whole : 0, 1, " %");
        share.value = whole > 0 ? work.forward_flops.total / whole : 0;
        table.rows.push_back({text_cell(labels[i]), scaled_cell(work.forward_flops.total, "FLOP"),
                              scaled_cell(work.backward_flops.total, "FLOP"), share,
                              bytes_cell(work.remote_bytes.total), scaled_cell(work.forward_flops.largest, "FLOP"),
                              bytes_cell(work.remote_bytes.largest)});
    }
    return table;
}

void plan(const PlanOptions &options) {
    if (options.ranks < 1)
        throw bad_input("--ranks " + std::to_string(options.ranks) + ": must be at least 1");
    const annulus_problem problem = options.problem.problem();
    const Context context = make_context(options.pattern, options.execution, problem.heads);
    const std::vector<std::string> labels = options.pattern.labels();
    const Cost cost = cost_of(context.get(), problem, labels.size(), options.ranks);

    Report report;
    report.add(problem_facts(problem, options.ranks));
    report.add(cost_table(cost));
    report.add(branch_table(cost, labels));
    report.print(options.format);
}

} // namespace

void add_plan_command(CLI::App &program) {
    auto options = std::make_shared<PlanOptions>();
    CLI::App *command = program.add_subcommand(
        "plan", "Say what N tokens on P ranks take, each rank holding an equal contiguous part: memory, FLOPs, rows "
                "received, by branch. Computes nothing.");
    options->problem.add_to(*command, true);
    command->add_option("--ranks", options->ranks, "P, 1 unless given")->type_name("P")->group("Problem");
    options->pattern.add_to(*command);
    options->execution.add_to(*command);
    add_format_option(*command, options->format);
    command->callback([options] { plan(*options); });
}

} // namespace annulus::cli
