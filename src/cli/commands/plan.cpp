// SPDX-License-Identifier: Apache-2.0
// annulus plan: estimates what a problem costs, on one rank or on several that share the sequence, on this machine or
// on GPUs that are not here.
#include "cli/arrays/output_file.hpp"
#include "cli/commands/commands.hpp"
#include "cli/commands/context.hpp"
#include "cli/commands/gpu_engines.hpp"
#include "cli/commands/links.hpp"
#include "cli/commands/pattern_picture.hpp"
#include "cli/commands/plan_estimates.hpp"
#include "cli/commands/plan_time.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/commands/sequence_lengths.hpp"
#include "cli/devices/gpu_models.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/report.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

constexpr std::int32_t host_gpus = 8; // GPUs of a host, unless --hosts says otherwise

struct PlanOptions {
    ProblemOptions problem;
    std::string sequences; // empty: none
    std::int32_t ranks = 1;
    Sharding sharding = Sharding::even;
    std::string gpu;              // empty: plans for the device of `execution`
    std::int32_t given_hosts = 0; // 0: a host for each host_gpus ranks
    std::string links;            // path; empty: what is known of the GPU
    std::string svg;              // path; empty: no picture
    std::string format = "text";
    PatternOptions pattern;
    ExecutionOptions execution;

    std::int32_t hosts() const { return given_hosts ? given_hosts : (ranks + host_gpus - 1) / host_gpus; }
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

void add_pass(PassCost &cost, const annulus_estimate &estimate, std::uint64_t workspace_bytes) {
    cost.flops.add(estimate.flops);
    cost.workspace.add(workspace_bytes);
    cost.memory.add(estimate.tensor_bytes + workspace_bytes);
    cost.sent.add(estimate.sent_bytes);
    cost.received.add(estimate.received_bytes);
}

Cost cost_of(const PlannedJob &job, const Shards &shards, const std::vector<RankEstimates> &ranks,
             const std::optional<Gpu> &gpu) {
    Cost cost{};
    cost.branches.resize(ranks.front().branch_pairs.size());
    for (std::int32_t index = 0; index < shards.ranks(); ++index) {
        const RankEstimates &rank = ranks[static_cast<std::size_t>(index)];
        const auto add = [&](PassCost &pass_cost, annulus_pass pass, const annulus_estimate &estimate) {
            const std::uint64_t workspace =
                gpu ? gpu_workspace_bytes(job, pass, *gpu, estimate, rank.float32_message_bytes, shards, index)
                    : estimate.workspace_bytes;
            add_pass(pass_cost, estimate, workspace);
        };
        add(cost.forward, ANNULUS_PASS_FORWARD, rank.forward);
        add(cost.backward, ANNULUS_PASS_BACKWARD, rank.backward);
        for (std::size_t i = 0; i < cost.branches.size(); ++i) {
            cost.branches[i].pairs.add(rank.branch_pairs[i]);
            cost.branches[i].received.add(rank.branch_received[i]);
        }
        cost.exchange = rank.forward.exchange;
        cost.tensors.add(rank.forward.tensor_bytes);
        cost.gradients.add(rank.backward.tensor_bytes - rank.forward.tensor_bytes);
        cost.rows.add(rank.rows);
    }
    return cost;
}

// Returns the engine that would compute a pass on one rank. With several ranks each rank of this machine chooses an
// engine for its own part.
Cell engine_cell(annulus_context *context, const annulus_problem &problem, annulus_pass pass, std::int32_t ranks,
                 const std::optional<Gpu> &gpu) {
    if (gpu)
        return text_cell(annulus_engine_name(gpu->engine(pass)));
    if (ranks > 1)
        return missing_cell();
    annulus_engine engine = ANNULUS_ENGINE_AUTO;
    check(annulus_select_engine(context, &problem, pass, &engine));
    return text_cell(annulus_engine_name(engine));
}

Facts problem_facts(annulus_context *context, const PlannedJob &job, std::int32_t ranks, std::int32_t hosts,
                    const Cost &cost, const std::optional<Gpu> &gpu) {
    const annulus_problem &problem = job.problem;
    const std::int64_t sequences = problem.options ? problem.options->sequence_count : 0;
    return {
        "problem",
        "Problem",
        {{{"device", "device"}, text_cell(gpu ? gpu->model.name : device_name(job.execution.device))},
         {{"tokens", "tokens N"}, count_cell(problem.sequence_length)},
         {{"sequences", "sequences"}, sequences > 0 ? count_cell(sequences) : missing_cell()},
         {{"ranks", "ranks"}, count_cell(ranks)},
         {{"hosts", "hosts"}, gpu ? count_cell(hosts) : missing_cell()},
         {{"tokens_per_rank", "tokens a rank, at most"}, count_cell(cost.rows.largest)},
         {{"exchange", "exchange"}, ranks > 1 ? text_cell(exchange_name(cost.exchange)) : missing_cell()},
         {{"batch", "batch B"}, count_cell(problem.batch)},
         {{"heads", "heads H"}, count_cell(problem.heads)},
         {{"kv_heads", "key/value heads G"}, count_cell(problem.kv_heads)},
         {{"head_dim", "head dimension D"}, count_cell(problem.head_dim)},
         {{"dtype", "dtype"}, text_cell(annulus_dtype_name(problem.dtype))},
         {{"forward_engine", "engine, forward"}, engine_cell(context, problem, ANNULUS_PASS_FORWARD, ranks, gpu)},
         {{"backward_engine", "engine, backward"}, engine_cell(context, problem, ANNULUS_PASS_BACKWARD, ranks, gpu)}}};
}

// Returns the data sheet of the GPU, and how many such GPUs have the memory.
Facts gpu_facts(const PlannedJob &job, const Gpu &gpu, Sharding sharding) {
    const GpuModel &model = gpu.model;
    const auto least = [&](annulus_pass pass) { return least_ranks(job, pass, gpu, sharding); };
    return {"gpu",
            "GPU, by its data sheet in decimal GB, less than drivers report; its memory holds attention's tensors and "
            "workspace alone",
            {{{"compute_capability", "compute capability"}, real_cell(model.capability / 10.0, 1)},
             {{"multiprocessors", "multiprocessors"}, count_cell(model.multiprocessors)},
             {{"memory_bytes", "memory"}, bytes_cell(model.memory_bytes)},
             {{"tensor_flops_per_second", "products in 16 bits"}, scaled_cell(model.tensor_flops, "FLOP/s")},
             {{"float32_flops_per_second", "float32"}, scaled_cell(model.float32_flops, "FLOP/s")},
             {{"memory_bytes_per_second", "memory, rate"}, scaled_cell(model.memory_rate, "B/s")},
             {{"link_bytes_per_second", std::string(model.link) + ", each way"}, scaled_cell(model.link_rate, "B/s")},
             {{"forward_least_ranks", "GPUs with enough memory, forward"}, least(ANNULUS_PASS_FORWARD)},
             {{"backward_least_ranks", "GPUs with enough memory, backward"}, least(ANNULUS_PASS_BACKWARD)}}};
}

// is_bound: the workspace is the most that a call takes.
Table cost_table(const Cost &cost, bool is_bound) {
    Table table{"cost",
                is_bound ? "Cost; workspace and memory at most" : "Cost",
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

// Throws unless the options for GPUs that are not here fit together.
void check_gpu_options(const PlanOptions &options) {
    if (options.gpu.empty() && (options.given_hosts > 0 || !options.links.empty()))
        throw bad_input(std::string(options.given_hosts > 0 ? "--hosts" : "--links") +
                        ": times are predicted for GPUs by name: give --gpu, such as --gpu H100");
    if (!options.gpu.empty() && options.execution.device.kind != ANNULUS_DEVICE_CPU)
        throw bad_input("--gpu " + options.gpu + ": plans for a GPU that need not be here; --device " +
                        device_name(options.execution.device) + " cannot be given with it");
    if (!options.gpu.empty() && options.execution.threads != 0)
        throw bad_input("--threads " + std::to_string(options.execution.threads) +
                        ": is for CPUs; it cannot be given with --gpu");
    if (!options.gpu.empty() && options.execution.workspace_limit != 0)
        throw bad_input(
            "--workspace-limit: cannot be given with --gpu; how much slower a call is then was not measured");
    if (options.given_hosts > options.ranks)
        throw bad_input("--hosts " + std::to_string(options.given_hosts) + ": must be at most the number of ranks, " +
                        std::to_string(options.ranks));
    if (options.sequences.empty() && !options.problem.tokens)
        throw bad_input("--tokens or --sequences must be given");
    if (!options.sequences.empty() && (options.problem.tokens || options.problem.batch != 1))
        throw bad_input("--sequences says how many tokens there are: --tokens and --batch cannot be given with it");
}

std::optional<Gpu> gpu_of(const PlanOptions &options, const PlannedJob &job, const Shards &shards) {
    if (options.gpu.empty())
        return std::nullopt;
    const GpuModel &model = gpu_model(options.gpu);
    return Gpu{model, engine_on(model, job, ANNULUS_PASS_FORWARD, shards),
               engine_on(model, job, ANNULUS_PASS_BACKWARD, shards)};
}

Links links_of(const PlanOptions &options, const GpuModel &model) {
    const Links links = options.links.empty() ? known_links(model, options.hosts()) : read_links(options.links);
    if (options.hosts() > 1 && !links.other_hosts)
        throw bad_input("--links " + options.links + ": has no link between hosts, which --hosts " +
                        std::to_string(options.hosts()) + " needs");
    if (options.hosts() < options.ranks && !links.same_host)
        throw bad_input("--links " + options.links + ": has no link in a host, which " + std::to_string(options.ranks) +
                        " ranks on " + std::to_string(options.hosts()) + " hosts need");
    return links;
}

void draw(const PlanOptions &options, const PlannedJob &job, const Shards &shards,
          const std::vector<std::string> &labels) {
    const std::int32_t heads = job.problem.heads;
    const std::string caption = std::to_string(job.problem.sequence_length) + " tokens: " + joined(labels, " + ") +
                                (options.pattern.causal ? ", causal" : "") +
                                (options.ranks > 1 ? "; " + std::to_string(options.ranks) + " ranks" : "");
    const Config config = options.pattern.config(heads);
    write_file("--svg", options.svg,
               draw_pattern(config.get(), job.problem.sequence_length, heads, shards, options.ranks, caption));
}

Context make_plan_context(const PlannedJob &job) {
    try {
        return make_context(job.pattern, job.execution, job.problem.heads);
    } catch (const Failure &failure) {
        if (job.execution.device.kind == ANNULUS_DEVICE_CPU)
            throw;
        throw Failure(failure.exit_code(),
                      std::string(failure.what()) + "; --gpu plans for a GPU that is not here, such as --gpu H100");
    }
}

void plan(const PlanOptions &options) {
    check_gpu_options(options);
    PlannedJob job{options.problem.problem(), options.pattern, options.execution};
    std::vector<std::int64_t> starts;
    annulus_call_options call = ANNULUS_CALL_OPTIONS_INIT;
    if (!options.sequences.empty()) {
        if (!options.svg.empty())
            throw bad_input("--svg: draws one sequence, without --sequences");
        starts = starts_of(parse_sequence_lengths(options.sequences));
        call.sequence_count = static_cast<std::int64_t>(starts.size()) - 1;
        call.sequence_starts = starts.data();
        job.problem.sequence_length = starts.back();
        job.problem.options = &call;
    }
    const PlannedJob wanted = job;
    if (!options.gpu.empty()) { // the CPU plans; the GPU's own numbers replace those of its engine
        job.execution.engine.clear();
        job.execution.threads = 1;
    }
    const std::vector<std::string> labels = options.pattern.labels(job.problem.heads);
    const Context context = make_plan_context(job);
    const Shards shards(context.get(), job.problem, options.ranks, options.sharding);
    const std::optional<Gpu> gpu = gpu_of(options, wanted, shards);
    const std::vector<RankEstimates> ranks = estimate_ranks(context.get(), job, shards);
    const Cost cost = cost_of(job, shards, ranks, gpu);
    if (!options.svg.empty())
        draw(options, job, shards, labels);
    Report report;
    report.add(problem_facts(context.get(), job, options.ranks, options.hosts(), cost, gpu));
    report.add(cost_table(cost, gpu.has_value()));
    report.add(branch_table(cost, labels));
    if (gpu) {
        const Links links = links_of(options, gpu->model);
        report.add(gpu_facts(job, *gpu, options.sharding));
        if (options.ranks > 1)
            report.add(link_facts(links));
        report.add(time_table(context.get(), job, shards, options.hosts(), ranks, *gpu, links));
    }
    report.print(options.format);
}

} // namespace

void add_plan_command(CLI::App &program) {
    auto options = std::make_shared<PlanOptions>();
    Command command(
        program, "plan",
        "Say what N tokens on P ranks take: memory, bytes sent, FLOPs; and by branch FLOPs and the rows of K and V "
        "that it takes of other ranks, for each shard its own. With --gpu also how many GPUs have the memory, and how "
        "long forward and backward take. Computes nothing.");
    options->problem.add_to(command, true);
    command
        .text("--sequences", options->sequences,
              "Plan one call over packed sequences of lengths spread evenly from MIN to MAX, instead of --tokens")
        .value("COUNT:MIN:MAX")
        .group("Problem");
    command.number<std::int32_t>("--ranks", options->ranks, 1, "P, 1 unless given", max_ranks)
        .value("P")
        .group("Problem");
    add_shards_option(command, options->sharding, true).group("Problem");
    options->pattern.add_to(command);
    options->execution.add_to(command);
    const std::string group = "GPUs that are not here";
    command
        .text("--gpu", options->gpu,
              "Plan for this model of GPU. Workspace is then the most that a call takes; times are predicted from "
              "measurements on H100s and from data sheets")
        .one_of(gpu_model_names())
        .value("NAME")
        .group(group);
    command
        .number<std::int32_t>("--hosts", options->given_hosts, 1,
                              "H, over which the ranks are divided in their order; one for each 8 ranks unless given",
                              max_ranks)
        .value("H")
        .group(group);
    command
        .file("--links", options->links,
              "The links between ranks, as bench --links saved them; else 400 Gb/s a GPU between hosts, and in a host "
              "the GPU's data sheet")
        .group(group);
    command
        .file("--svg", options->svg,
              "Draw which keys each query attends to, for up to 2048 tokens and 64 heads: of up to 128 tokens "
              "each pair, of more their mean in 128 x 128 cells or fewer; and of up to 64 shards the borders")
        .ends_in(".svg");
    add_format_option(command, options->format);
    command.example("annulus plan --tokens 1M --heads 16 --head-dim 64 --branch 2Ki:1 --branch 64Ki:32 --gpu H100");
    command.runs([options] { plan(*options); });
}

} // namespace annulus::cli
