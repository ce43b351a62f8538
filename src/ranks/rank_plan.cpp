// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_plan.hpp"

#include "core/error.hpp"
#include "engine/mass.hpp"
#include "ranks/exchange_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace annulus {

namespace {

Problem with_windows(Problem problem, const Window &rows) {
    problem.queries = problem.keys = rows;
    return problem;
}

// Returns, for each shard, how many rows the rank has in the shards before it.
std::vector<std::int64_t> rows_before_shards(const Shards &shards, int rank) {
    std::vector<std::int64_t> before;
    before.reserve(shards.pieces.size());
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < shards.pieces.size(); ++i) {
        before.push_back(rows);
        rows += shards.owners[i] == rank ? shards.pieces[i].length : 0;
    }
    return before;
}

std::int64_t rows_of_rank(const Shards &shards, const Sequence &sequence, int rank) {
    const ShardRange range = shards_in(shards.pieces, sequence.rows);
    std::int64_t count = 0;
    for (auto i = static_cast<std::size_t>(range.first); i < static_cast<std::size_t>(range.last); ++i)
        count += shards.owners[i] == rank ? intersect(shards.pieces[i], sequence.rows).length : 0;
    return count;
}

} // namespace

// What is the same for all sequences while a RankPlan is made.
struct RankPlan::Making {
    const Pattern &pattern;
    const Shards &shards;
    const int rank;
    const annulus_exchange exchange; // may be `auto`
    const bool is_one_shard;         // the rank has one
    const std::vector<std::int64_t> rows_before;
    Steps steps;
    std::int64_t shard_pairs = 0; // of a sending and a receiving shard, so far
};

RankPlan::RankPlan(const Pattern &pattern, const CallProblem &problem, const Shards &shards, int rank,
                   annulus_exchange exchange, std::int64_t max_steps)
    : ranks_(std::ranges::max(shards.owners) + 1), rows_(with_windows(problem.rows, shards.window_of(rank))),
      covers_rows_(true) {
    const bool may_share = shards.pieces.size() > 1;
    Making making{pattern,
                  shards,
                  rank,
                  exchange,
                  std::ranges::count(shards.owners, rank) == 1,
                  rows_before_shards(shards, rank),
                  Steps(max_steps)};
    const Sequence whole{0, rows_.batch, {0, rows_.sequence_length}};
    if (!problem.sequences.empty()) {
        plan_sequences(making, problem.sequences);
    } else if (may_share) { // also shards without rows, since the rank's own may be empty
        SequenceShards all{shards, std::vector<std::size_t>(shards.pieces.size())};
        std::iota(all.indices.begin(), all.indices.end(), std::size_t{0});
        share(making, whole, std::move(all), exchanges_of(making, {whole}).front());
    } else {
        plan_sequences(making, {whole});
    }
}

std::int64_t RankPlan::position_of_row_0(const Making &making, std::size_t shard) const {
    return making.is_one_shard ? rows_.queries.start : making.shards.pieces[shard].start - making.rows_before[shard];
}

std::vector<annulus_exchange> RankPlan::exchanges_of(const Making &making,
                                                     const std::vector<Sequence> &sequences) const {
    if (making.exchange == ANNULUS_EXCHANGE_AUTO)
        return choose_exchanges(making.pattern, rows_, sequences, making.shards);
    return std::vector<annulus_exchange>(sequences.size(), making.exchange);
}

void RankPlan::share(Making &making, const Sequence &sequence, SequenceShards shards, annulus_exchange exchange) {
    Shared &shared =
        shared_.emplace_back(sequence, making.pattern, problem_of(rows_, sequence), std::move(shards.shards), exchange);
    const ShardLayout &layout = shared.layout;
    const int count = static_cast<int>(shards.indices.size());
    for (int index = 0; index < count; ++index)
        making.shard_pairs += layout.owner(index) == making.rank ? layout.reachable_pairs(index) : 0;
    if (making.shard_pairs > max_shard_pairs)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "%zu shards are too many for segments, windows or global positions that reach so far: planning for "
                    "rank %d takes %lld pairs "
                    "of a sending and a receiving shard; there may be %lld",
                    making.shards.pieces.size(), making.rank, static_cast<long long>(making.shard_pairs),
                    static_cast<long long>(max_shard_pairs));
    for (int index = 0; index < count; ++index)
        if (layout.owner(index) == making.rank)
            shared.shards.emplace_back(position_of_row_0(making, shards.indices[static_cast<std::size_t>(index)]),
                                       layout, index, making.steps);
}

void RankPlan::plan_sequences(Making &making, const std::vector<Sequence> &sequences) {
    for (const Sequence &sequence : sequences)
        if (sequence.rows.end() > rows_.sequence_length)
            throw Error(
                ANNULUS_ERROR_ARGUMENT,
                "sequence_starts or sequence_lengths of options reach row %lld; there are %lld rows on all ranks "
                "together",
                static_cast<long long>(sequence.rows.end()), static_cast<long long>(rows_.sequence_length));
    const std::vector<annulus_exchange> exchanges = exchanges_of(making, sequences);
    std::vector<Sequence> own;
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        const Sequence &sequence = sequences[i];
        const std::int64_t here = rows_of_rank(making.shards, sequence, making.rank);
        covered += here * sequence.batches;
        if (here == 0)
            continue;
        if (here == sequence.rows.length) { // in one shard, since neighbours of one owner are one shard
            const auto shard = static_cast<std::size_t>(shards_in(making.shards.pieces, sequence.rows).first);
            own.push_back(sequence);
            own.back().rows.start += rows_.queries.start - position_of_row_0(making, shard);
        } else {
            share(making, sequence, shards_of(making.shards, sequence.rows), exchanges[i]);
        }
    }
    covers_rows_ = covered == rows_.batch * rows_.queries.length;
    if (!own.empty())
        own_.emplace(making.pattern, CallProblem{rows_, std::move(own)}, OtherRows::leave);
}

annulus_exchange RankPlan::exchange() const {
    const bool has_ring = std::ranges::any_of(
        shared_, [](const Shared &shared) { return shared.layout.exchange() == ANNULUS_EXCHANGE_RING; });
    return has_ring ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER;
}

std::uint64_t RankPlan::traffic(annulus_pass pass, std::uint64_t (ShardPlan::*bytes_of)(annulus_pass) const) const {
    const bool is_mass = pass == ANNULUS_PASS_MASS; // which runs backward in each of its rounds
    std::uint64_t sum = 0;
    for (const Shared &shared : shared_)
        for (const Shard &shard : shared.shards)
            sum += (shard.plan.*bytes_of)(is_mass ? ANNULUS_PASS_BACKWARD : pass);
    const std::int64_t rounds = is_mass ? mass_rounds(rows_) : 1;
    if (__builtin_mul_overflow(sum, rounds, &sum))
        throw Error(
            ANNULUS_ERROR_ARGUMENT,
            "the rows that a rank would exchange with the others in %lld rounds are more than 64 bits can count",
            static_cast<long long>(rounds));
    return sum;
}

std::uint64_t RankPlan::sent_bytes(annulus_pass pass) const {
    return traffic(pass, &ShardPlan::sent_bytes);
}

std::uint64_t RankPlan::received_bytes(annulus_pass pass) const {
    return traffic(pass, &ShardPlan::received_bytes);
}

std::int64_t RankPlan::received_messages() const {
    std::size_t count = 0;
    for (const Shared &shared : shared_)
        for (const Shard &shard : shared.shards)
            for (const std::vector<ReceivedKeys> &received : shard.plan.received())
                count += received.size();
    return static_cast<std::int64_t>(count);
}

double RankPlan::pairs(std::int32_t branch) const {
    double sum = own_ ? own_->pairs(branch) : 0;
    for (const Shared &shared : shared_)
        for (const Shard &shard : shared.shards)
            sum += shard.plan.local().pairs(branch);
    return sum;
}

std::uint64_t RankPlan::bytes() const {
    std::uint64_t sum = sizeof *this + (own_ ? own_->bytes() - sizeof *own_ : 0);
    for (const Shared &shared : shared_) {
        sum += sizeof shared - sizeof shared.layout + shared.layout.bytes();
        for (const Shard &shard : shared.shards)
            sum += sizeof shard - sizeof shard.plan + shard.plan.bytes();
    }
    return sum;
}

} // namespace annulus
