// SPDX-License-Identifier: Apache-2.0
// Who owes which rows of K and V to whom, and when: pure data, a function of the plan and the shards alone.
//
// Shards are contiguous, so of two different ones each segment of a branch that meets both contains all that lies
// between: a branch has at most one segment in common between two shards, and what the receiver wants of it is one
// class of the segment (or several), clipped to the sender's shard. The messages from one rank to another hold the
// union over branches and heads: each row that some query of the receiver attends to, once, and nothing else. Causality
// decides between two shards as a whole: all of the one lies before all of the other.
#pragma once

#include "core/class_pairs.hpp"

#include <annulus/config.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace annulus {

// What two shards have in common in one branch: a segment, and the keys of the one in it.
struct CommonSegment {
    BranchPlan branch;
    Segment segment;
    Window keys;
};

// Whether one of `heads` query heads has a query in `queries`, of another shard, that attends to key m in one of these.
constexpr bool wants(const CommonSegment *segments, std::int32_t count, std::int32_t first_head, std::int32_t heads,
                     const Window &queries, std::int64_t key) {
    for (std::int32_t i = 0; i < count; ++i) {
        const auto &[branch, segment, keys] = segments[i];
        if (key >= keys.start && key < keys.end() &&
            has_row_in(segment, pair_of_key(branch, segment, first_head, first_head + heads, key).queries, queries))
            return true;
    }
    return false;
}

// Where wanted rows are looked for one by one, they are counted for so many positions at a time.
constexpr std::int64_t positions_of_count = 8192;

// What wants() says of one segment along a line, for keys first, first + 1, …: those are wanted whose distance from the
// first of the residues that the heads use is short, and from the first of those that queries ask for.
class WantedKeys {
  public:
    WantedKeys() = default;
    constexpr WantedKeys(const CommonSegment &common, std::int32_t first_head, std::int32_t heads,
                         const Window &queries, std::int64_t first)
        : begin_(common.keys.start - first), end_(common.keys.end() - first), dilation_(common.branch.dilation()),
          used_(common.branch.residues(first_head, first_head + heads), first - common.segment.range.start, dilation_),
          asked_(asked_residues(common, queries), first - common.segment.range.start, dilation_) {}

    // Of key first + i, 0 <= i < positions_of_count.
    constexpr bool has(std::int32_t i) const {
        return i >= begin_ && i < end_ && used_.has(i, dilation_) && asked_.has(i, dilation_);
    }

  private:
    static constexpr ResidueRange asked_residues(const CommonSegment &common, const Window &queries) {
        const Window &range = common.segment.range, part = intersect(range, queries);
        return part.length > 0 ? residues_of_queries(common.branch, part.start - range.start, part.length)
                               : ResidueRange{};
    }

    // Some residues that follow one another, as places meet them that do.
    class Residues {
      public:
        Residues() = default;
        constexpr Residues(const ResidueRange &residues, std::int64_t place, std::int64_t dilation)
            : distance_(remainder(place - residues.first, dilation)), count_(residues.count) {}

        // Whether place + i has one of them.
        constexpr bool has(std::int32_t i, std::int64_t dilation) const {
            const std::int64_t over = i - (dilation - distance_);
            if (over < 0)
                return distance_ + i < count_;
            if (over < dilation)
                return over < count_;
            // A GPU divides numbers of 32 bits much faster.
            return static_cast<std::uint32_t>(over) % static_cast<std::uint32_t>(dilation) < count_;
        }

      private:
        std::int64_t distance_; // of the first place from the first residue
        std::int64_t count_;
    };

    std::int64_t begin_, end_; // of the segment's keys, from `first` on
    std::int64_t dilation_;
    Residues used_, asked_;
};

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
    std::vector<CommonSegment> lines, curves;
    for (const CommonSegment &common : message.segments)
        (common.segment.curve.is_linear() ? lines : curves).push_back(common);
    std::vector<WantedKeys> of_lines(lines.size());
    for (std::int64_t first = message.keys.start; first < message.keys.end(); first += positions_of_count) {
        std::ranges::transform(lines, of_lines.begin(), [&](const CommonSegment &common) {
            return WantedKeys(common, first_head, group, message.queries, first);
        });
        const auto count = static_cast<std::int32_t>(std::min(positions_of_count, message.keys.end() - first));
        for (std::int32_t i = 0; i < count; ++i)
            if (std::ranges::any_of(of_lines, [i](const WantedKeys &wanted) { return wanted.has(i); }) ||
                wants(curves.data(), static_cast<std::int32_t>(curves.size()), first_head, group, message.queries,
                      first + i))
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
