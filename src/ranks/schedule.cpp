// SPDX-License-Identifier: Apache-2.0
#include "ranks/schedule.hpp"

#include "ranks/message_maker.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace annulus {

std::int64_t Message::total_rows() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::vector<Message> make_messages(const ShardLayout &layout, int from, int to) {
    Steps steps(call_planning_steps);
    return MessageMaker(layout, from, steps).make(from, to);
}

Schedule::Schedule(const ShardLayout &layout, int shard, Steps &steps) : layout_(layout), shard_(shard) {
    MessageMaker maker(layout, shard_, steps);
    const bool is_ring = layout.exchange() == ANNULUS_EXCHANGE_RING;
    // Hops, each with a message. The messages of a hop keep the order in which they were made.
    std::vector<std::pair<std::size_t, const Message *>> sends, receives;
    const auto make = [&](int from, int to, std::deque<Message> &messages, auto &by_hop) {
        if (layout.may_send(from, to))
            for (Message &message : maker.make(from, to))
                by_hop.emplace_back(layout.hop(from, to), &messages.emplace_back(std::move(message)));
    };
    const ShardRange reach = layout.reach(shard_);
    for (int i = 1; i < reach.count(); ++i) { // the shards after this one, then the shards before it
        const int peer = reach.first + (shard_ - reach.first + i) % reach.count();
        make(shard_, peer, outgoing_, sends);
        make(peer, shard_, incoming_, receives);
    }
    for (auto *const by_hop : {&sends, &receives})
        std::ranges::stable_sort(*by_hop, {}, [](const auto &entry) { return entry.first; });
    for (auto send = sends.begin(), receive = receives.begin(); send != sends.end() || receive != receives.end();) {
        const std::size_t hop = std::min(send != sends.end() ? send->first : receive->first,
                                         receive != receives.end() ? receive->first : send->first);
        if (rounds_.empty() || is_ring)
            rounds_.push_back({is_ring ? hop : 0, {}, {}});
        for (; send != sends.end() && send->first == hop; ++send)
            rounds_.back().sends.push_back(send->second);
        for (; receive != receives.end() && receive->first == hop; ++receive)
            rounds_.back().receives.push_back(receive->second);
    }
}

// A hop in which the shard sends and receives nothing counts, too. So both ranks order the messages between them alike.
std::size_t Schedule::round_count() const {
    return layout_.exchange() == ANNULUS_EXCHANGE_RING ? layout_.hops() : std::min<std::size_t>(1, layout_.hops());
}

std::uint64_t Schedule::bytes() const {
    std::uint64_t sum = sizeof *this + rounds_.capacity() * sizeof(Round);
    for (const Round &round : rounds_)
        sum += (round.sends.capacity() + round.receives.capacity()) * sizeof(const Message *);
    for (const std::deque<Message> *const messages : {&outgoing_, &incoming_})
        for (const Message &message : *messages)
            sum += sizeof message + message.segments.capacity() * sizeof(CommonSegment) +
                   (message.rows.capacity() + message.firsts.capacity()) * sizeof(std::int64_t);
    return sum;
}

} // namespace annulus
