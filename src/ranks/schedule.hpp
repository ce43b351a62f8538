// SPDX-License-Identifier: Apache-2.0
// Which shard sends which rows of K and V to which shard, and in which round. It is pure data, a function of the plan
// and the shards alone.
//
// Shards are contiguous. A segment that meets two shards contains every position between them, so two shards share at
// most one segment of each branch. The receiver wants one or more classes of that segment, clipped to the sender's
// shard. The messages from one shard to another hold the union over branches and heads: each row that a query of the
// receiver attends to, once, and no other row. One shard lies before the other as a whole, so causality allows all keys
// of a message or none.
#pragma once

#include "ranks/shard_layout.hpp"
#include "ranks/steps.hpp"
#include "ranks/wanted_keys.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace annulus {

// The wanted rows of K and V in a window of keys, which one shard sends to another. On the wire they lie [batch, kv
// head, wanted row, D], in the order of their positions: first all rows of K, then all rows of V.
//
// The receiver computes with them in slots. A head has one slot for every `stride` positions of `keys`, from its start.
// `stride` divides all distances between the wanted rows of a head, so each row has a slot of its own. It is the
// dilation if one branch alone wants rows, and 1 if the distances have no closed form.
struct Message {
    int from = 0, to = 0;                // shards
    Window queries;                      // the receiver's shard
    Window keys;                         // the message has every wanted row in it; other messages' windows are disjoint
    std::int64_t stride = 1;             // positions
    std::vector<CommonSegment> segments; // of the branches in which rows are wanted
    std::vector<std::int64_t> rows;      // number of wanted rows of each kv head
    // The first wanted row of each kv head, if the wanted rows of every kv head are first, first + stride, … Else
    // empty.
    std::vector<std::int64_t> firsts;

    // Returns the number of slots of a head.
    std::int64_t slots() const { return divide_up(keys.length, stride); }
    std::int64_t piece_count() const { return divide_up(keys.length, key_piece_length); }
    // Returns the number of wanted rows of a batch entry, over the kv heads.
    std::int64_t total_rows() const;
    // True if `firsts`, `rows` and `stride` determine the wanted rows of every kv head.
    bool is_regular() const { return !firsts.empty(); }
    // True if every slot of every head holds a wanted row. Then the rows have one layout on the wire and in slots.
    bool is_full() const { return total_rows() == slots() * static_cast<std::int64_t>(rows.size()); }
};

// Calls use(position) for the rows of a kv head in a message, in the order of the wire.
template <class Use> void for_each_row(const Plan &plan, const Message &message, std::int32_t kv_head, Use use) {
    const std::int32_t group = plan.problem().heads / plan.problem().kv_heads, first_head = kv_head * group;
    std::vector<bool> is_wanted;
    for (std::int64_t first = message.keys.start; first < message.keys.end(); first += key_piece_length) {
        is_wanted.assign(key_piece_length, false);
        for (const CommonSegment &common : message.segments) {
            const WantedKeys keys(common, first_head, group, message.queries, first);
            for_each_wanted(common, keys, first_head, group, message.queries, first, 0, 1,
                            [&](std::int64_t i) { is_wanted[static_cast<std::size_t>(i)] = true; });
        }
        for (std::int64_t i = 0; i < key_piece_length; ++i)
            if (is_wanted[static_cast<std::size_t>(i)])
                use(first + i);
    }
}

// Returns the messages from one shard to another. May take call_planning_steps.
std::vector<Message> make_messages(const ShardLayout &layout, int from, int to);

// The messages that a shard sends and receives at the same time.
struct Round {
    std::size_t number; // among the rounds of the sequence
    std::vector<const Message *> sends, receives;
};

// One shard's messages, by rounds. The exchange `ring` has a round for each hop, so two sets of buffers are enough. The
// exchange `gather` has all messages in one round. The memory of a schedule grows with its messages, not with the
// number of rounds.
class Schedule {
  public:
    // `layout` outlives it. Throws Error(ANNULUS_ERROR_UNSUPPORTED) if planning the shard's messages takes more than
    // `steps`.
    Schedule(const ShardLayout &layout, int shard, Steps &steps);
    // The rounds point to the messages.
    Schedule(const Schedule &) = delete;
    Schedule &operator=(const Schedule &) = delete;

    const ShardLayout &layout() const { return layout_; }
    int shard() const { return shard_; }
    int owner(int shard) const { return layout_.owner(shard); }
    // True if the sender and the receiver are on different ranks.
    bool travels(const Message &message) const { return owner(message.from) != owner(message.to); }
    // Returns the rounds in which the shard sends or receives a message, in order.
    const std::vector<Round> &rounds() const { return rounds_; }
    // Returns the number of rounds of the sequence, which all shards count alike.
    std::size_t round_count() const;
    // Returns the bytes of host memory, with the messages and without the layout.
    std::uint64_t bytes() const;

  private:
    const ShardLayout &layout_;
    int shard_;
    std::deque<Message> outgoing_, incoming_; // are not moved: the rounds point to them
    std::vector<Round> rounds_;
};

} // namespace annulus
