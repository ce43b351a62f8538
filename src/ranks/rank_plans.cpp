// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_plans.hpp"

#include "core/error.hpp"

#include <algorithm>

namespace annulus {

namespace {

Problem with_windows(Problem problem, const Window &rows) {
    problem.queries = problem.keys = rows;
    return problem;
}

// The part of each shard that belongs to a sequence, in positions of the sequence.
Shards shards_of(const Window &rows, Shards shards) {
    std::int64_t start = 0;
    for (Window &piece : shards.pieces) {
        piece = {start, intersect(piece, rows).length};
        start = piece.end();
    }
    return shards;
}

} // namespace

RankPlans::RankPlans(const Pattern &pattern, const CallProblem &problem, const Shards &shards, int rank,
                     annulus_exchange exchange, std::int64_t most_steps)
    : ranks_(std::ranges::max(shards.owners) + 1), rows_(with_windows(problem.rows, shards.window_of(rank))),
      covers_rows_(true) {
    const bool is_one_shard = std::ranges::count(shards.owners, rank) == 1;
    // The rank's rows of a sequence; those of shards that lie one behind the other as a shard each.
    const auto share = [&](const Sequence &sequence) {
        Shared &shared = shared_.emplace_back(Shared{sequence, {}});
        const Shards parts = shards_of(sequence.rows, shards);
        std::int64_t row = is_one_shard ? rows_.queries.start : 0;
        for (std::size_t i = 0; i < shards.pieces.size(); ++i) {
            if (shards.owners[i] != rank)
                continue;
            const Window &piece = shards.pieces[i];
            const std::int64_t position_of_row_0 = is_one_shard ? row : piece.start - row;
            if (parts.pieces[i].length > 0 || is_one_shard)
                shared.shards.emplace_back(position_of_row_0, pattern, problem_of(rows_, sequence), parts,
                                           static_cast<int>(i), exchange, most_steps);
            row += piece.length;
        }
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
        const std::int64_t here = shards_of(sequence.rows, shards).rows_of(rank);
        covered += here * sequence.batches;
        if (is_one_shard && here == sequence.rows.length)
            own.push_back(sequence);
        else if (here > 0)
            share(sequence);
    }
    covers_rows_ = covered == rows_.batch * rows_.queries.length;
    if (!own.empty())
        own_.emplace(pattern, CallProblem{rows_, std::move(own)});
}

annulus_exchange RankPlans::exchange() const {
    const bool rings = std::ranges::any_of(shared_, [](const Shared &shared) {
        return std::ranges::any_of(shared.shards, [](const Shard &shard) {
            return shard.plan.schedule().exchange() == ANNULUS_EXCHANGE_RING;
        });
    });
    return rings ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER;
}

std::uint64_t RankPlans::sent_bytes(annulus_pass pass) const {
    std::uint64_t sum = 0;
    for (const Shared &shared : shared_)
        for (const Shard &shard : shared.shards)
            sum += shard.plan.sent_bytes(pass);
    return sum;
}

std::uint64_t RankPlans::received_bytes(annulus_pass pass) const {
    std::uint64_t sum = 0;
    for (const Shared &shared : shared_)
        for (const Shard &shard : shared.shards)
            sum += shard.plan.received_bytes(pass);
    return sum;
}

template <class Value> double RankPlans::sum_of_plans(const Value &value) const {
    double sum = own_ ? value(*own_) : 0;
    for (const Shared &shared : shared_)
        for (const Shard &shard : shared.shards)
            sum += value(shard.plan.local());
    return sum;
}

double RankPlans::pairs(std::int32_t branch) const {
    return sum_of_plans([&](const auto &plan) { return plan.pairs(branch); });
}

double RankPlans::remote_bytes(std::int32_t branch) const {
    return sum_of_plans([&](const auto &plan) { return plan.remote_bytes(branch); });
}

} // namespace annulus
