// SPDX-License-Identifier: Apache-2.0
#include "ranks/schedule.hpp"

#include "ranks/exchange_choice.hpp"
#include "ranks/message_maker.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace annulus {

std::int64_t Message::total_rows() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::vector<Message> make_messages(const Plan &plan, const std::vector<Window> &shards, int from, int to) {
    return MessageMaker(plan, shards, from, call_steps).make(from, to);
}

Schedule::Schedule(const Plan &plan, Shards shards, int shard, annulus_exchange exchange, std::int64_t most_steps)
    : shards_(std::move(shards)), shard_(shard), exchange_(exchange) {
    if (exchange_ == ANNULUS_EXCHANGE_AUTO)
        exchange_ = gather_is_small(plan, shards_.pieces) ? ANNULUS_EXCHANGE_GATHER : ANNULUS_EXCHANGE_RING;
    const int count = static_cast<int>(shards_.pieces.size());
    outgoing_.resize(static_cast<std::size_t>(count - 1));
    incoming_.resize(outgoing_.size());
    MessageMaker maker(plan, shards_.pieces, shard_, most_steps);
    for (int hop = 1; hop < count; ++hop) { // a peer is `hop` places after this shard, and it as many after the peer
        const int peer = (shard_ + hop) % count;
        outgoing_[static_cast<std::size_t>(hop - 1)] = maker.make(shard_, peer);
        incoming_[static_cast<std::size_t>(count - hop - 1)] = maker.make(peer, shard_);
    }
    // Hops in which this rank has nothing to do stand there too: messages between two ranks have one order on both.
    if (exchange_ == ANNULUS_EXCHANGE_RING)
        rounds_.resize(outgoing_.size());
    else
        rounds_.resize(outgoing_.empty() ? 0 : 1);
    for (std::size_t i = 0; i < outgoing_.size(); ++i) {
        Round &round = rounds_[exchange_ == ANNULUS_EXCHANGE_RING ? i : 0];
        for (const Message &message : outgoing_[i])
            round.sends.push_back(&message);
        for (const Message &message : incoming_[i])
            round.receives.push_back(&message);
    }
}

std::int64_t Shards::rows_of(int rank) const {
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i)
        rows += owners[i] == rank ? pieces[i].length : 0;
    return rows;
}

Window Shards::window_of(int rank) const {
    if (std::ranges::count(owners, rank) == 1)
        return pieces[static_cast<std::size_t>(std::ranges::find(owners, rank) - owners.begin())];
    return {0, rows_of(rank)};
}

Shards make_shards(const std::vector<std::int64_t> &lengths, const std::vector<int> &owners, int ranks) {
    Shards shards;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        if (lengths[i] == 0)
            continue;
        if (!shards.owners.empty() && shards.owners.back() == owners[i]) {
            shards.pieces.back().length += lengths[i];
            continue;
        }
        shards.pieces.push_back({shards.length(), lengths[i]});
        shards.owners.push_back(owners[i]);
    }
    std::vector<bool> has_shard(static_cast<std::size_t>(ranks));
    for (const int owner : shards.owners)
        has_shard[static_cast<std::size_t>(owner)] = true;
    for (int rank = 0; rank < ranks; ++rank)
        if (!has_shard[static_cast<std::size_t>(rank)]) {
            shards.pieces.push_back({shards.length(), 0});
            shards.owners.push_back(rank);
        }
    return shards;
}

Shards make_shards(const std::vector<std::int64_t> &lengths) {
    Shards shards;
    std::int64_t start = 0;
    for (const std::int64_t length : lengths) {
        shards.owners.push_back(static_cast<int>(shards.pieces.size()));
        shards.pieces.push_back({start, length});
        start += length;
    }
    return shards;
}

} // namespace annulus
