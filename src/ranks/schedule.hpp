// SPDX-License-Identifier: Apache-2.0
// Who owes which rows of K and V to whom, and when: pure data, a function of the plan and the shards alone.
//
// Shards are contiguous, so of two different ones each segment of a branch that meets both contains all that lies
// between: a branch has at most one segment in common between two shards, and what the receiver wants of it is one
// class of the segment (or several), clipped to the sender's shard. The messages from one rank to another hold the
// union over branches and heads: each row that some query of the receiver attends to, once, and nothing else. Causality
// decides between two shards as a whole: all of the one lies before all of the other.
#pragma once

#include "ranks/wanted_keys.hpp"

#include <annulus/config.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace annulus {

// Rows of K and V that one rank sends to another: all wanted ones between two positions. On the wire rows lie [batch,
// kv head, wanted row, D], wanted rows in the order of their positions, first all of K, then all of V.
//
// Where they are computed with, a head's rows lie in slots: one for every `stride` positions of `keys`, counted from
// its start. `stride` divides all distances between the wanted rows of a head, so that no two meet in a slot: it is the
// dilation, where one branch alone wants rows, and 1, where the distances are not told in closed form.
struct Message {
    int from = 0, to = 0;                // ranks
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

// What planning may cost, in steps of some ten nanoseconds: a branch of a key/value head in a message, a class of rows
// that is held against another, a position at the border of a shard in the Hilbert order, a row that is told by nothing
// shorter. An estimate answers at once or not at all. A call's limit is there for what has no end: its steps of the
// last kind are its rows to send and to receive, which take longer themselves.
constexpr std::int64_t estimate_steps = std::int64_t{1} << 21, call_steps = std::int64_t{1} << 36;

// The messages from one shard to another, for which a call would plan.
std::vector<Message> make_messages(const Plan &plan, const std::vector<Window> &shards, int from, int to);

// What happens between two parts of the computation: messages that this rank sends and receives.
struct Round {
    std::vector<const Message *> sends, receives;
};

// The parts of a sequence that ranks hold, in the order of their positions: of each the rank whose it is.
struct Shards {
    std::vector<Window> pieces;
    std::vector<int> owners;

    bool operator==(const Shards &) const = default;
    // Whether each rank has one, in the order of the ranks: then their lengths say all.
    bool are_in_order() const { return std::ranges::is_sorted(owners, std::less_equal()); }
    // Of all together.
    std::int64_t length() const { return pieces.empty() ? 0 : pieces.back().end(); }
    // Rows of a rank, which has its pieces one after the other.
    std::int64_t rows_of(int rank) const;
    // A rank's rows: where they are one piece its positions, else from 0 on.
    Window window_of(int rank) const;
};

// One shard's messages, those from one rank to another in one round. The exchange `ring` has ranks - 1 hops: in hop t a
// rank sends to the rank t places after it and receives from the rank t places before it, so that two buffers are
// enough. `gather` has all of them in one round.
class Schedule {
  public:
    // `plan` is of the whole sequence. Equal on all ranks: shards, plan and exchange. Throws
    // Error(ANNULUS_ERROR_UNSUPPORTED) where the messages of this rank take more than `most_steps`. The exchange `auto`
    // becomes `ring` where the choice takes more than estimate_steps.
    Schedule(const Plan &plan, Shards shards, int shard, annulus_exchange exchange, std::int64_t most_steps);
    // Rounds point to its messages.
    Schedule(const Schedule &) = delete;
    Schedule &operator=(const Schedule &) = delete;

    const Shards &shards() const { return shards_; }
    int shard() const { return shard_; }
    // The rank that has a shard.
    int owner(int shard) const { return shards_.owners[static_cast<std::size_t>(shard)]; }
    // Whether a message goes from one rank to another.
    bool travels(const Message &message) const { return owner(message.from) != owner(message.to); }
    // Not `auto`.
    annulus_exchange exchange() const { return exchange_; }
    // In order; in one of them there may be nothing to do.
    const std::vector<Round> &rounds() const { return rounds_; }

  private:
    Shards shards_;
    int shard_;
    annulus_exchange exchange_;
    std::vector<std::vector<Message>> outgoing_, incoming_; // of hop 1, 2, …
    std::vector<Round> rounds_;
};

// Of pieces of these lengths, of these owners: those that follow one another become one, and every rank has one.
Shards make_shards(const std::vector<std::int64_t> &lengths, const std::vector<int> &owners, int ranks);

// Contiguous shards of these lengths, one a rank.
Shards make_shards(const std::vector<std::int64_t> &lengths);

} // namespace annulus
