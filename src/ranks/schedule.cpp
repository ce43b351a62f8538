// SPDX-License-Identifier: Apache-2.0
#include "ranks/schedule.hpp"

#include "ranks/exchange_choice.hpp"
#include "ranks/message_maker.hpp"

#include <numeric>
#include <utility>

namespace annulus {

std::int64_t Message::total_rows() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::vector<Message> make_messages(const Plan &plan, const std::vector<Window> &shards, int from, int to) {
    return MessageMaker(plan, shards, from, call_steps).make(from, to);
}

Schedule::Schedule(const Plan &plan, std::vector<Window> shards, int rank, annulus_exchange exchange,
                   std::int64_t most_steps)
    : shards_(std::move(shards)), rank_(rank), exchange_(exchange) {
    if (exchange_ == ANNULUS_EXCHANGE_AUTO)
        exchange_ = gather_is_small(plan, shards_) ? ANNULUS_EXCHANGE_GATHER : ANNULUS_EXCHANGE_RING;
    const int ranks = static_cast<int>(shards_.size());
    outgoing_.resize(static_cast<std::size_t>(ranks - 1));
    incoming_.resize(outgoing_.size());
    MessageMaker maker(plan, shards_, rank_, most_steps);
    for (int hop = 1; hop < ranks; ++hop) { // a peer is `hop` places after this rank, and it as many after the peer
        const int peer = (rank_ + hop) % ranks;
        outgoing_[static_cast<std::size_t>(hop - 1)] = maker.make(rank_, peer);
        incoming_[static_cast<std::size_t>(ranks - hop - 1)] = maker.make(peer, rank_);
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

std::vector<Window> make_shards(const std::vector<std::int64_t> &lengths) {
    std::vector<Window> shards;
    std::int64_t start = 0;
    for (const std::int64_t length : lengths) {
        shards.push_back({start, length});
        start += length;
    }
    return shards;
}

} // namespace annulus
