// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_costs.hpp"

#include <algorithm>
#include <limits>

namespace annulus {

namespace {

// The (query, key) pairs of a head that a GPU could compute while it waits for a row of K and V of a kv head. By data
// sheets, not measured: 4 D FLOPs a pair at 500 TFLOP/s, and 4 D bytes a row in bfloat16 at 250 GB/s, are 2000 pairs.
// Three quarters of the rows arrive while the GPU computes. Between hosts a GPU has 50 GB/s; more ranks than a host has
// GPUs are on several hosts.
constexpr double pairs_per_row_of_host = 500, pairs_per_row_of_other_hosts = 2500;
constexpr int gpus_of_host = 8;

// How many pairs of a head a GPU computes in the time that a message of rows takes beside its bytes: some 85 µs forward
// and 220 µs backward, measured on H100s (message_seconds in cli/commands/tuning.hpp). A problem for CPUs has far fewer
// pairs, and a message costs less there. So a message counts as at most a share of what a rank has to do.
constexpr double pairs_per_message = 1e8, max_share_of_message = 1.0 / 100;

// The steps of counting the pairs that the queries of a window have in a branch.
constexpr std::int64_t steps_per_count = 16;

// Returns how many key/value heads want a key of a segment, on average over the keys.
double heads_of_row(const Plan &plan, const BranchPlan &branch) {
    const Problem &problem = plan.problem();
    const std::int32_t group = problem.heads / problem.kv_heads;
    const std::int64_t r = branch.dilation();
    const std::int32_t first_head = branch.first_head();
    const std::int64_t residues = branch.residues(first_head, first_head + std::min(group, branch.head_count())).count;
    return static_cast<double>(std::min(residues, r)) / static_cast<double>(r) *
           std::min(problem.kv_heads, static_cast<std::int32_t>(divide_up(branch.head_count(), group)));
}

} // namespace

ShardCosts::ShardCosts(const Pattern &pattern, const CallProblem &problem, Steps &steps)
    : steps_(steps), rows_(problem.rows.sequence_length) {
    sequences_ = problem.sequences;
    if (sequences_.empty())
        sequences_.push_back({0, problem.rows.batch, {0, rows_}});
    std::erase_if(sequences_, [](const Sequence &sequence) { return sequence.rows.length == 0; });
    std::ranges::stable_sort(sequences_, {}, [](const Sequence &sequence) { return sequence.rows.start; });
    for (const Sequence &sequence : sequences_) {
        const std::pair key(sequence.batches, sequence.rows.length);
        auto found = plans_.find(key);
        if (found == plans_.end()) {
            Problem whole = problem_of(problem.rows, sequence);
            whole.queries = whole.keys = {0, whole.sequence_length};
            const Plan plan(pattern, whole);
            found = plans_.emplace(key, SequencePlan{plan, plan.pairs(ANNULUS_ALL_BRANCHES)}).first;
        }
        sequence_plans_.push_back(&found->second);
    }
    std::int64_t end = 0;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
        const Window &own = sequences_[i].rows;
        if (own.start > end)
            items_.push_back({{end, own.start - end}, i, i});
        if (own.start >= end)
            items_.push_back({own, i, i});
        Item &item = items_.back();
        item.last = i + 1;
        item.pairs += sequence_plans_[i]->pairs;
        pairs_ += sequence_plans_[i]->pairs;
        end = std::max(end, own.end());
        item.rows.length = end - item.rows.start;
    }
    if (end < rows_)
        items_.push_back({{end, rows_ - end}, sequences_.size(), sequences_.size()});
}

double ShardCosts::pairs(const Item &item, const Window &window) const {
    double sum = 0;
    steps_.take(static_cast<std::int64_t>(item.last - item.first));
    for (std::size_t i = item.first; i < item.last; ++i) {
        const Window part = intersect(window, sequences_[i].rows);
        if (part.length == 0)
            continue;
        Problem problem = sequence_plans_[i]->plan.problem();
        problem.queries = {part.start - sequences_[i].rows.start, part.length};
        const Plan cut(sequence_plans_[i]->plan, problem);
        steps_.take(steps_per_count * static_cast<std::int64_t>(cut.branches().size()));
        sum += cut.pairs(ANNULUS_ALL_BRANCHES);
    }
    return sum;
}

ShardCosts::Received ShardCosts::received(const Item &item, const std::vector<Window> &windows, std::size_t index,
                                          const Shards &shards) const {
    Received sum;
    steps_.take(static_cast<std::int64_t>(item.last - item.first));
    for (std::size_t i = item.first; i < item.last; ++i) {
        const Sequence &sequence = sequences_[i];
        const Window part = intersect(windows[index], sequence.rows);
        if (part.length == 0)
            continue;
        const Plan &plan = sequence_plans_[i]->plan;
        steps_.take(static_cast<std::int64_t>(plan.branches().size() * windows.size()));
        const std::int64_t first = part.start - sequence.rows.start, last = first + part.length - 1;
        double rows = 0, most = 0;
        Window reached_by_any = part;
        for (const BranchPlan &branch : plan.branches()) {
            const KeyBounds &bounds = branch.bounds();
            const std::int64_t start = std::max(branch.segment_at(first).range.start, first - bounds.before);
            const std::int64_t end = std::min(branch.segment_at(last).range.end(), last + 1 + bounds.after);
            Window reached = intersect({start, end - start}, branch.key_range());
            if (reached.length == 0 || intersect({first, part.length}, branch.query_range()).length == 0)
                continue;
            reached.start += sequence.rows.start;
            std::int64_t outside = reached.length;
            for (const Window &own : windows)
                outside -= intersect(reached, own).length;
            if (branch.kind() != ANNULUS_BRANCH_GLOBAL) {
                const std::int64_t least = std::min(reached_by_any.start, reached.start);
                reached_by_any = {least, std::max(reached_by_any.end(), reached.end()) - least};
            } else if (outside > 0) { // these keys may be far from all other keys
                sum.messages += shards_in(shards.pieces, reached).count();
            }
            rows += static_cast<double>(outside) * heads_of_row(plan, branch);
            most = std::max(most, static_cast<double>(outside) * plan.problem().kv_heads);
        }
        sum.rows += std::min(rows, most) * static_cast<double>(sequence.batches);
        sum.messages += shards_in(shards.pieces, reached_by_any).count() - 1;
    }
    return sum;
}

double ShardCosts::of_busiest_rank(const Shards &shards, int ranks) const {
    const double row = ranks > gpus_of_host ? pairs_per_row_of_other_hosts : pairs_per_row_of_host;
    const double message = std::min(pairs_per_message, max_share_of_message * pairs_ / ranks);
    std::vector<double> costs_of_ranks(static_cast<std::size_t>(ranks));
    std::map<int, std::vector<Window>> windows; // of an item, by rank
    std::size_t shard = 0;
    for (const Item &item : items_) {
        if (item.is_gap())
            continue;
        windows.clear();
        while (shards.pieces[shard].end() <= item.rows.start)
            ++shard;
        for (std::size_t i = shard; i < shards.pieces.size() && shards.pieces[i].start < item.rows.end(); ++i)
            if (const Window part = intersect(shards.pieces[i], item.rows); part.length > 0)
                windows[shards.owners[i]].push_back(part);
        for (const auto &[rank, own] : windows) {
            double &cost = costs_of_ranks[static_cast<std::size_t>(rank)];
            if (own.front().length == item.rows.length) {
                cost += item.pairs;
                continue;
            }
            for (std::size_t i = 0; i < own.size(); ++i) {
                const auto [rows, messages] = received(item, own, i, shards);
                cost += pairs(item, own[i]) + row * rows + message * static_cast<double>(messages);
            }
            if (steps_.ran_out())
                return std::numeric_limits<double>::infinity();
        }
    }
    return std::ranges::max(costs_of_ranks);
}

} // namespace annulus
