// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_plans.hpp"

#include "core/error.hpp"

#include <algorithm>

namespace annulus {

namespace {

Problem with_windows(Problem problem, const Window &shard) {
    problem.queries = problem.keys = shard;
    return problem;
}

// The part of each shard that belongs to a sequence, in positions of the sequence.
std::vector<Window> shards_of(const Window &rows, const std::vector<Window> &shards) {
    std::vector<Window> parts;
    std::int64_t start = 0;
    for (const Window &shard : shards) {
        parts.push_back({start, intersect(shard, rows).length});
        start = parts.back().end();
    }
    return parts;
}

} // namespace

RankPlans::RankPlans(const Pattern &pattern, const CallProblem &problem, const std::vector<Window> &shards, int rank,
                     annulus_exchange exchange, std::int64_t most_steps)
    : rows_(with_windows(problem.rows, shards[static_cast<std::size_t>(rank)])), covers_rows_(true) {
    const Window &shard = rows_.queries;
    const auto share = [&](const Sequence &sequence) {
        shared_.emplace_back(sequence, pattern, problem_of(rows_, sequence), shards_of(sequence.rows, shards), rank,
                             exchange, most_steps);
    };
    if (problem.sequences.empty()) {
        share({0, rows_.batch, {0, rows_.sequence_length}});
        return;
    }
    std::vector<Sequence> own;
    std::int64_t covered = 0;
    for (const Sequence &sequence : problem.sequences) {
        if (sequence.rows.end() > rows_.sequence_length)
            throw Error(
                ANNULUS_ERROR_ARGUMENT,
                "sequence_starts or sequence_lengths of options reach row %lld; there are %lld rows on all ranks "
                "together",
                static_cast<long long>(sequence.rows.end()), static_cast<long long>(rows_.sequence_length));
        const std::int64_t here = intersect(shard, sequence.rows).length;
        covered += here * sequence.batches;
        if (here == sequence.rows.length)
            own.push_back(sequence);
        else if (here > 0)
            share(sequence);
    }
    covers_rows_ = covered == rows_.batch * shard.length;
    if (!own.empty())
        own_.emplace(pattern, CallProblem{rows_, std::move(own)});
}

annulus_exchange RankPlans::exchange() const {
    const bool rings = std::ranges::any_of(
        shared_, [](const Shared &shared) { return shared.plan.schedule().exchange() == ANNULUS_EXCHANGE_RING; });
    return rings ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER;
}

std::uint64_t RankPlans::sent_bytes(annulus_pass pass) const {
    std::uint64_t sum = 0;
    for (const Shared &shared : shared_)
        sum += shared.plan.sent_bytes(pass);
    return sum;
}

std::uint64_t RankPlans::received_bytes(annulus_pass pass) const {
    std::uint64_t sum = 0;
    for (const Shared &shared : shared_)
        sum += shared.plan.received_bytes(pass);
    return sum;
}

} // namespace annulus
