// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/plan_time.hpp"

#include "cli/arrays/dtype_bytes.hpp"
#include "cli/commands/context.hpp"
#include "cli/commands/gpu_engines.hpp"
#include "cli/commands/kernel_time.hpp"
#include "cli/commands/tuning.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/failure.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace annulus::cli {

namespace {

bool is_backward(annulus_pass pass) {
    return pass == ANNULUS_PASS_BACKWARD;
}

// The seconds of a pass on one rank.
struct PassTime {
    double kernels = 0;  // over all keys
    double own_keys = 0; // the part over the rank's own keys, while messages travel
    double messages = 0;
    double launches = 0; // over own and received keys apart, one for each set of messages with which a shard computes
    double agreement = 0;

    double exposed() const { return std::max(0.0, messages - own_keys); }
    double total() const { return kernels + exposed() + launches + agreement; }
};

// What the times of all ranks have in common.
struct Setting {
    const PlannedJob &job;
    const Gpu &gpu;
    const Links &links;
    std::vector<annulus_branch> branches;
    std::vector<double> covered; // covered_shares()
    double read_share;
    std::vector<bool> leaves_host;         // by rank: its host exchanges rows with another host
    std::vector<std::int32_t> most_rounds; // by rank: of a ring
};

// Calls use(rows) for each sequence.
template <class Use> void for_each_sequence(const annulus_problem &problem, const Use &use) {
    const std::vector<std::int64_t> bounds = sequence_bounds(problem);
    for (std::size_t i = 1; i < bounds.size(); ++i)
        use(Range{bounds[i - 1], bounds[i] - bounds[i - 1]});
}

// Returns the length of a sequence, for several sequences that of the mean row's.
std::int64_t typical_length(const annulus_problem &problem) {
    double rows = 0, squares = 0;
    for_each_sequence(problem, [&](const Range &sequence) {
        const auto length = static_cast<double>(sequence.length);
        rows += length;
        squares += length * length;
    });
    return static_cast<std::int64_t>(squares / rows);
}

// Returns for each rank the most rounds that a ring can have: a sequence has a round for each of its shards besides
// one, and round i of a call is round i of every sequence.
std::vector<std::int32_t> most_rounds_of(const annulus_problem &problem, const Shards &shards) {
    std::vector<std::int32_t> rounds(static_cast<std::size_t>(shards.ranks()), 0), owners; // owners: of a sequence
    const annulus_shards view = shards.view();
    std::int32_t shard = 0;
    std::int64_t start = 0; // of the shard
    for_each_sequence(problem, [&](const Range &rows) {
        const std::int64_t end = rows.start + rows.length;
        owners.clear();
        for (; shard < view.count; start += view.lengths[shard++]) {
            const bool has_rows = std::max(start, rows.start) < std::min(start + view.lengths[shard], end);
            if (has_rows && (owners.empty() || owners.back() != view.owners[shard]))
                owners.push_back(view.owners[shard]);
            if (start + view.lengths[shard] > end) // it has rows of the next sequence, too
                break;
        }
        for (const std::int32_t owner : owners) {
            std::int32_t &most = rounds[static_cast<std::size_t>(owner)];
            most = std::max(most, static_cast<std::int32_t>(owners.size()) - 1);
        }
    });
    return rounds;
}

// Returns the share of the rows of Q, K and V that a kernel reads.
double read_share_of(const std::vector<annulus_branch> &branches) {
    const auto densest = std::ranges::min_element(branches, {}, &annulus_branch::dilation);
    return 1.0 / static_cast<double>(densest->dilation);
}

std::vector<bool> ranks_that_leave_hosts(annulus_context *context, const PlannedJob &job, const Shards &shards,
                                         int hosts) {
    std::vector<bool> leaves(static_cast<std::size_t>(shards.ranks()), false);
    if (hosts == 1)
        return leaves;
    const Shards by_host = shards.on_hosts(hosts);
    std::vector<bool> host_leaves;
    for (std::int32_t host = 0; host < hosts; ++host) {
        const annulus_estimate estimate = estimate_of_rank(context, job.problem, ANNULUS_PASS_FORWARD, by_host, host);
        host_leaves.push_back(estimate.sent_bytes + estimate.received_bytes > 0);
    }
    for (std::int32_t rank = 0; rank < shards.ranks(); ++rank)
        leaves[static_cast<std::size_t>(rank)] =
            host_leaves[static_cast<std::size_t>(host_of(rank, shards.ranks(), hosts))];
    return leaves;
}

// Returns the least share of the pairs that are with the rank's own keys: as if each row of K, own or received, were in
// equally many pairs. Causality hides half of the pairs with own keys.
double own_share(const annulus_problem &problem, bool causal, const RankEstimates &rank) {
    const double own = 2.0 * static_cast<double>(problem.batch * rank.rows * problem.kv_heads) * problem.head_dim *
                       dtype_bytes(problem.dtype) * (causal ? 0.5 : 1);
    const auto received = static_cast<double>(rank.forward.received_bytes);
    return own + received > 0 ? own / (own + received) : 1;
}

std::optional<double> kernel_seconds_of(const Setting &setting, annulus_pass pass, const RankEstimates &rank) {
    const annulus_problem &problem = setting.job.problem;
    std::vector<BranchWork> work;
    for (std::size_t i = 0; i < setting.branches.size(); ++i) {
        const double rows = static_cast<double>(problem.batch * rank.rows) * problem.heads;
        work.push_back({rank.branch_pairs[i], rows * query_share(setting.branches[i], problem.heads),
                        setting.covered[i], bounds_of(setting.branches[i], setting.job.pattern.causal)});
    }
    const annulus_estimate &estimate = is_backward(pass) ? rank.backward : rank.forward;
    return kernel_seconds(setting.gpu.model, setting.gpu.engine(pass), setting.job.execution.allow_tf32, problem, pass,
                          work, static_cast<double>(estimate.tensor_bytes), setting.read_share);
}

std::optional<PassTime> time_of(const Setting &setting, annulus_pass pass, const std::vector<RankEstimates> &ranks,
                                std::size_t index) {
    const RankEstimates &rank = ranks[index];
    const annulus_estimate &estimate = is_backward(pass) ? rank.backward : rank.forward;
    const std::optional<double> kernels = kernel_seconds_of(setting, pass, rank);
    if (!kernels)
        return std::nullopt;
    PassTime time;
    time.kernels = *kernels;
    if (ranks.size() == 1)
        return time;
    time.own_keys = *kernels * own_share(setting.job.problem, setting.job.pattern.causal, rank);
    time.agreement = setting.links.agreement_seconds;
    const auto messages = static_cast<double>(estimate.received_messages);
    time.launches = messages * (is_backward(pass) ? tuning::message_seconds.backward : tuning::message_seconds.forward);
    if (estimate.received_bytes > 0)
        time.launches += tuning::share_of_launches * time.kernels;
    const auto bytes = static_cast<double>(std::max(estimate.sent_bytes, estimate.received_bytes));
    if (bytes > 0) {
        // A ring exchanges with one shard after the other, at once for all shards of a rank and all sequences.
        // Backward also returns gradients.
        const double rounds = std::clamp(messages, 1.0, std::max(setting.most_rounds[index] + 0.0, 1.0));
        const double exchanges =
            (estimate.exchange == ANNULUS_EXCHANGE_RING ? rounds : 1.0) * (is_backward(pass) ? 2 : 1);
        const Link &link = setting.leaves_host[index] ? *setting.links.other_hosts : *setting.links.same_host;
        time.messages = exchanges * link.exchange_seconds + bytes / link.bytes_per_second;
    }
    return time;
}

struct Slowest {
    PassTime time;
    double mean_kernels; // over the ranks
};

std::optional<Slowest> slowest_of(const Setting &setting, annulus_pass pass, const std::vector<RankEstimates> &ranks) {
    Slowest slowest{{}, 0};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const std::optional<PassTime> time = time_of(setting, pass, ranks, i);
        if (!time)
            return std::nullopt;
        slowest.mean_kernels += time->kernels / static_cast<double>(ranks.size());
        if (time->total() > slowest.time.total())
            slowest.time = *time;
    }
    return slowest;
}

bool fits(const PlannedJob &job, annulus_pass pass, const Gpu &gpu, const annulus_estimate &estimate,
          std::uint64_t message_bytes, const Shards &shards, std::int32_t rank) {
    return estimate.tensor_bytes + gpu_workspace_bytes(job, pass, gpu, estimate, message_bytes, shards, rank) <=
           gpu.model.memory_bytes;
}

bool fit_all(const PlannedJob &job, annulus_pass pass, const Gpu &gpu, const Shards &shards,
             const std::vector<RankEstimates> &ranks) {
    for (std::int32_t rank = 0; rank < shards.ranks(); ++rank) {
        const RankEstimates &own = ranks[static_cast<std::size_t>(rank)];
        if (!fits(job, pass, gpu, is_backward(pass) ? own.backward : own.forward, own.float32_message_bytes, shards,
                  rank))
            return false;
    }
    return true;
}

} // namespace

Cell least_ranks(const PlannedJob &job, annulus_pass pass, const Gpu &gpu, Sharding sharding) {
    const Context context = make_context(job.pattern, job.execution, job.problem.heads);
    const Context unlimited = make_context(job.pattern, without_limit(job.execution), job.problem.heads);
    const auto fit = [&](std::int32_t ranks) {
        const Shards shards(context.get(), job.problem, ranks, sharding);
        const std::int32_t middle = ranks / 2;
        const annulus_estimate estimate = estimate_of_rank(context.get(), job.problem, pass, shards, middle);
        return fits(job, pass, gpu, estimate, float32_message_bytes(unlimited.get(), job.problem, shards, middle),
                    shards, middle);
    };
    try {
        std::int32_t high = 1;
        while (!fit(high)) {
            if (high >= max_ranks) {
                Cell none = missing_cell();
                none.text = "more than " + std::to_string(max_ranks);
                return none;
            }
            high *= 2;
        }
        std::int32_t low = high / 2; // 0, or too few
        while (high - low > 1) {
            const std::int32_t middle = low + (high - low) / 2;
            (fit(middle) ? high : low) = middle;
        }
        return count_cell(high);
    } catch (const Failure &failure) {
        Cell none = missing_cell();
        none.text = failure.what();
        return none;
    }
}

Table time_table(annulus_context *context, const PlannedJob &job, const Shards &shards, int hosts,
                 const std::vector<RankEstimates> &ranks, const Gpu &gpu, const Links &links) {
    const Config config = job.pattern.config(job.problem.heads);
    Setting setting{job, gpu, links, get_branches(config.get()), {}, 1, {}, most_rounds_of(job.problem, shards)};
    setting.covered = covered_shares(setting.branches, typical_length(job.problem), job.problem.heads);
    setting.read_share = read_share_of(setting.branches);
    setting.leaves_host = ranks_that_leave_hosts(context, job, shards, hosts);
    const bool forward_fits = fit_all(job, ANNULUS_PASS_FORWARD, gpu, shards, ranks);
    const bool backward_fits = fit_all(job, ANNULUS_PASS_BACKWARD, gpu, shards, ranks);
    const auto slowest = [&](annulus_pass pass, bool has_memory) {
        return has_memory ? slowest_of(setting, pass, ranks) : std::nullopt;
    };
    const std::optional<Slowest> forward = slowest(ANNULUS_PASS_FORWARD, forward_fits);
    const std::optional<Slowest> backward = slowest(ANNULUS_PASS_BACKWARD, backward_fits);
    const std::string lack = forward_fits && backward_fits ? ""
                             : forward_fits || backward_fits
                                 ? std::string("; ") + (forward_fits ? "backward" : "forward") + " exceeds the memory"
                                 : "; both passes exceed the memory";
    Table table{"time",
                "Time, predicted: the slowest rank" + lack,
                {{"quantity", ""}, {"forward", "forward"}, {"backward", "backward"}},
                {}};
    const auto add = [&](const char *key, const char *title, const std::function<Cell(const Slowest &)> &cell) {
        Cell name = text_cell(title);
        name.value = key;
        table.rows.push_back(
            {name, forward ? cell(*forward) : missing_cell(), backward ? cell(*backward) : missing_cell()});
    };
    add("seconds", "a call", [](const Slowest &s) { return seconds_cell(s.time.total()); });
    add("kernel_seconds", "kernels", [](const Slowest &s) { return seconds_cell(s.time.kernels); });
    add("message_seconds", "messages", [](const Slowest &s) { return seconds_cell(s.time.messages); });
    add("exposed_seconds", "messages that nothing hides",
        [](const Slowest &s) { return seconds_cell(s.time.exposed()); });
    add("launch_seconds", "launches for messages", [](const Slowest &s) { return seconds_cell(s.time.launches); });
    add("agreement_seconds", "agreement", [](const Slowest &s) { return seconds_cell(s.time.agreement); });
    add("mean_kernel_seconds", "kernels, mean of the ranks",
        [](const Slowest &s) { return seconds_cell(s.mean_kernels); });
    add("efficiency", "mean kernels / call",
        [](const Slowest &s) { return real_cell(s.mean_kernels / s.time.total(), 2); });
    return table;
}

} // namespace annulus::cli
