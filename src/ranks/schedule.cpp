// SPDX-License-Identifier: Apache-2.0
#include "ranks/schedule.hpp"

#include "ranks/message_maker.hpp"

#include <algorithm>
#include <numeric>

namespace annulus {

std::int64_t Message::total_rows() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::vector<Message> make_messages(const ShardLayout &layout, int from, int to) {
    Steps steps(call_planning_steps);
    return MessageMaker(layout, from, steps).make(from, to);
}

Schedule::Schedule(const ShardLayout &layout, int shard, Steps &steps)
    : layout_(layout), shard_(shard), outgoing_(layout.hops()), incoming_(layout.hops()) {
    MessageMaker maker(layout, shard_, steps);
    const ShardRange reach = layout.reach(shard_);
    for (int i = 1; i < reach.count(); ++i) { // the shards after this one, then the shards before it
        const int peer = reach.first + (shard_ - reach.first + i) % reach.count();
        if (layout.may_send(shard_, peer))
            outgoing_[layout.hop(shard_, peer)] = maker.make(shard_, peer);
        if (layout.may_send(peer, shard_))
            incoming_[layout.hop(peer, shard_)] = maker.make(peer, shard_);
    }
    // A hop in which this shard sends and receives nothing has a round, too. So both ranks order the messages between
    // them alike.
    const bool is_ring = layout.exchange() == ANNULUS_EXCHANGE_RING;
    rounds_.resize(is_ring ? outgoing_.size() : std::min<std::size_t>(1, outgoing_.size()));
    for (std::size_t i = 0; i < outgoing_.size(); ++i) {
        Round &round = rounds_[is_ring ? i : 0];
        for (const Message &message : outgoing_[i])
            round.sends.push_back(&message);
        for (const Message &message : incoming_[i])
            round.receives.push_back(&message);
    }
}

std::uint64_t Schedule::bytes() const {
    std::uint64_t sum = sizeof *this + rounds_.capacity() * sizeof(Round);
    for (const Round &round : rounds_)
        sum += (round.sends.capacity() + round.receives.capacity()) * sizeof(const Message *);
    for (const auto *const hops : {&outgoing_, &incoming_})
        for (const std::vector<Message> &messages : *hops) {
            sum += sizeof messages + messages.capacity() * sizeof(Message);
            for (const Message &message : messages)
                sum += message.segments.capacity() * sizeof(CommonSegment) +
                       (message.rows.capacity() + message.firsts.capacity()) * sizeof(std::int64_t);
        }
    return sum;
}

} // namespace annulus
