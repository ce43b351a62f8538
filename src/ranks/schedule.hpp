// SPDX-License-Identifier: Apache-2.0
// Who owes which rows of K and V to whom, and when: pure data, a function of the plan and the shards alone.
//
// Shards are contiguous, so of two different ones each segment of a branch that meets both contains all that lies
// between: a branch has at most one segment in common between two shards, and what the receiver wants of it is one
// class of the segment (or several), clipped to the sender's shard. The messages from one rank to another hold the
// union over branches and heads: each row that some query of the receiver attends to, once, and nothing else. Causality
// decides between two shards as a whole: all of the one lies before all of the other.
#pragma once

#include "ranks/shard_layout.hpp"
#include "ranks/steps.hpp"
#include "ranks/wanted_keys.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

// Rows of K and V that one rank sends to another: all wanted ones between two positions. On the wire rows lie [batch,
// kv head, wanted row, D], wanted rows in the order of their positions, first all of K, then all of V.
//
// Where they are computed with, a head's rows lie in slots: one for every `stride` positions of `keys`, counted from
// its start. `stride` divides all distances between the wanted rows of a head, so that no two meet in a slot: it is the
// dilation, where one branch alone wants rows, and 1, where the distances are not told in closed form.
struct Message {
    int from = 0, to = 0;                // shards
    Window queries;                      // the receiver's shard
    Window keys;                         // all wanted rows in it are in this message; those of others do not overlap
    std::int64_t stride = 1;             // positions
    std::vector<CommonSegment> segments; // of the branches in which rows are wanted
    std::vector<std::int64_t> rows;      // wanted, of each kv head
    // Where the wanted rows of each head are first, first + stride, …: its first. Else empty.
    std::vector<std::int64_t> firsts;

    std::int64_t slots() const { return divide_up(keys.length, stride); } // of a head
    std::int64_t pieces() const { return divide_up(keys.length, positions_of_count); }
    // Of a batch entry, over the heads.
    std::int64_t total_rows() const;
    // Whether the wanted rows of a head are told by its first alone.
    bool is_regular() const { return !firsts.empty(); }
    // Every slot of every head is wanted: wire and slots are the same.
    bool is_full() const { return total_rows() == slots() * static_cast<std::int64_t>(rows.size()); }
};

// Calls use(position) for the rows of a kv head that a message holds, in the order of the wire.
template <class Use> void for_each_row(const Plan &plan, const Message &message, std::int32_t kv_head, Use use) {
    const std::int32_t group = plan.problem().heads / plan.problem().kv_heads, first_head = kv_head * group;
    std::vector<bool> is_wanted;
    for (std::int64_t first = message.keys.start; first < message.keys.end(); first += positions_of_count) {
        is_wanted.assign(positions_of_count, false);
        for (const CommonSegment &common : message.segments) {
            const WantedKeys keys(common, first_head, group, message.queries, first);
            for_each_wanted(common, keys, first_head, group, message.queries, first, 0, 1,
                            [&](std::int64_t i) { is_wanted[static_cast<std::size_t>(i)] = true; });
        }
        for (std::int64_t i = 0; i < positions_of_count; ++i)
            if (is_wanted[static_cast<std::size_t>(i)])
                use(first + i);
    }
}

// The messages from one shard to another, for which a call would plan.
std::vector<Message> make_messages(const ShardLayout &layout, int from, int to);

// What happens between two parts of the computation: messages that this rank sends and receives.
struct Round {
    std::vector<const Message *> sends, receives;
};

// One shard's messages, those from one rank to another in one round: with the exchange `ring` those of a hop, so that
// two buffers are enough; `gather` has all of them in one round.
class Schedule {
  public:
    // `layout` outlives it. Throws Error(ANNULUS_ERROR_UNSUPPORTED) where the messages of this shard take more steps
    // than there are.
    Schedule(const ShardLayout &layout, int shard, Steps &steps);
    // Rounds point to its messages.
    Schedule(const Schedule &) = delete;
    Schedule &operator=(const Schedule &) = delete;

    const ShardLayout &layout() const { return layout_; }
    int shard() const { return shard_; }
    int owner(int shard) const { return layout_.owner(shard); }
    // Whether a message goes from one rank to another.
    bool travels(const Message &message) const { return owner(message.from) != owner(message.to); }
    // In order; in one of them there may be nothing to do.
    const std::vector<Round> &rounds() const { return rounds_; }
    // Host memory, messages included, without the layout.
    std::uint64_t bytes() const;

  private:
    const ShardLayout &layout_;
    int shard_;
    std::vector<std::vector<Message>> outgoing_, incoming_; // of each hop
    std::vector<Round> rounds_;
};

} // namespace annulus
