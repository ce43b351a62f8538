// SPDX-License-Identifier: Apache-2.0
#include "ranks/schedule_checks.hpp"

#include "core/dtype_number.hpp"
#include "ranks/exchange_choice.hpp"
#include "ranks/gather_slots.hpp"
#include "ranks/shard_plan.hpp"
#include "support/mask.hpp"
#include "support/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace annulus::test {
namespace {

using Rows = std::vector<std::int64_t>; // positions, ascending

// The rows that each shard needs of the other shards, position by position.
class Wanted {
  public:
    Wanted(const Problem &problem, const std::vector<Window> &shards) : problem_(problem), shards_(shards) {
        const Mask mask(problem);
        for (const Window &shard : shards) {
            std::vector<std::vector<bool>> &attended = attended_.emplace_back(
                problem.kv(), std::vector<bool>(static_cast<std::size_t>(problem.length), false));
            for (std::int64_t n = shard.start; n < shard.end(); ++n)
                for (std::int32_t head = 0; head < problem.heads; ++head)
                    for (const std::int64_t m : mask.keys(n, head).positions)
                        attended[problem.kv_head(head)][m] = true;
        }
    }

    // Returns the rows of shard `from`, in a key/value head, that a query of shard `to` attends to.
    Rows rows(int from, int to, std::int32_t kv_head) const {
        Rows rows;
        for (std::int64_t m = shards_[from].start; m < shards_[from].end(); ++m)
            if (from != to && attended_[to][kv_head][m])
                rows.push_back(m);
        return rows;
    }

    // Returns the positions in `window` that a query of the shard attends to.
    Rows rows_in(const Window &window, int to, std::int32_t kv_head) const {
        Rows rows;
        for (std::int64_t m = window.start; m < window.end(); ++m)
            if (attended_[to][kv_head][m])
                rows.push_back(m);
        return rows;
    }

    std::int64_t count(int from, int to) const {
        std::int64_t count = 0;
        for (std::int32_t kv_head = 0; kv_head < problem_.kv(); ++kv_head)
            count += static_cast<std::int64_t>(rows(from, to, kv_head).size());
        return count;
    }

  private:
    const Problem &problem_;
    const std::vector<Window> &shards_;
    std::vector<std::vector<std::vector<bool>>> attended_; // [receiver][kv head][position]
};

Rows rows_of(const Plan &plan, const Message &message, std::int32_t kv_head) {
    Rows rows;
    for_each_row(plan, message, kv_head, [&](std::int64_t m) { rows.push_back(m); });
    return rows;
}

// Checks that the rows of a head have different slots, in order, and that their distances are multiples of the stride.
void expect_slots(const Message &message, const Rows &rows) {
    ASSERT_GE(message.stride, 1);
    std::int64_t previous = -1;
    for (const std::int64_t m : rows) {
        ASSERT_GE(m, message.keys.start);
        ASSERT_LT(m, message.keys.end());
        const std::int64_t slot = (m - message.keys.start) / message.stride;
        ASSERT_GT(slot, previous);
        ASSERT_LT(slot, message.slots());
        ASSERT_EQ((m - rows.front()) % message.stride, 0);
        previous = slot;
    }
}

// Checks that a message has exactly the wanted rows in its window of keys.
void expect_message(const Plan &plan, const Message &message, const Wanted &wanted) {
    ASSERT_EQ(message.rows.size(), plan.problem().kv_heads);
    std::int64_t total = 0;
    bool is_full = true;
    for (std::int32_t g = 0; g < plan.problem().kv_heads; ++g) {
        SCOPED_TRACE(testing::Message() << "key/value head " << g);
        Rows rows = wanted.rows(message.from, message.to, g);
        std::erase_if(rows, [&](std::int64_t m) { return m < message.keys.start || m >= message.keys.end(); });
        total += static_cast<std::int64_t>(rows.size());
        ASSERT_EQ(rows_of(plan, message, g), rows);
        ASSERT_EQ(message.rows[g], rows.size());
        expect_slots(message, rows);
        is_full = is_full && static_cast<std::int64_t>(rows.size()) == message.slots();
        if (message.is_regular()) {
            ASSERT_EQ(message.firsts.size(), plan.problem().kv_heads);
            for (std::size_t j = 0; j < rows.size(); ++j)
                ASSERT_EQ(rows[j], message.firsts[g] + static_cast<std::int64_t>(j) * message.stride);
        }
    }
    ASSERT_GT(total, 0); // there are no messages without rows
    ASSERT_EQ(message.total_rows(), total);
    ASSERT_EQ(message.is_full(), is_full);
}

// Checks the keys that a shard attends to at once: together they have all messages of the round, and each row has a
// slot of its own. No query may find another key in the window.
void expect_received_keys(const ShardPlan &plan, std::size_t round, const Wanted &wanted) {
    const int shard = plan.schedule().shard();
    std::vector<const Message *> messages;
    for (const ReceivedKeys &keys : plan.received()[round]) {
        ASSERT_EQ(intersect(keys.keys, plan.local().problem().queries).length, 0);
        std::int64_t slots = 0;
        for (const Message *message : keys.messages) {
            messages.push_back(message);
            ASSERT_EQ(message->stride, keys.stride);
            slots += message->slots();
        }
        ASSERT_LE(keys.slots(), slots + static_cast<std::int64_t>(keys.messages.size()));
        for (std::int32_t g = 0; g < plan.local().problem().kv_heads; ++g) {
            SCOPED_TRACE(testing::Message() << "key/value head " << g);
            Rows rows;
            for (const Message *message : keys.messages)
                for_each_row(plan.local(), *message, g, [&](std::int64_t m) { rows.push_back(m); });
            ASSERT_EQ(rows, wanted.rows_in(keys.keys, shard, g));
            std::int64_t previous = -1;
            for (const std::int64_t m : rows) {
                const std::int64_t slot = (m - keys.keys.start) / keys.stride;
                ASSERT_GT(slot, previous);
                ASSERT_LT(slot, keys.slots());
                previous = slot;
            }
        }
    }
    std::vector<const Message *> received = plan.schedule().rounds()[round].receives;
    std::ranges::sort(messages);
    std::ranges::sort(received);
    ASSERT_EQ(messages, received);
}

// True if the library finds the wanted rows in closed form.
bool is_closed_form(const Problem &problem) {
    return std::all_of(problem.branches.begin(), problem.branches.end(), [](const BranchSpec &branch) {
        return branch.order == ANNULUS_ORDER_LINEAR && branch.query != ANNULUS_QUERY_RESIDUE;
    });
}

// True if a branch may give queries of one of two shards keys of the other. `b` comes after `a`.
bool may_share(const Problem &problem, const BranchSpec &branch, const Window &a, const Window &b) {
    const std::int64_t n = problem.length, r = branch.dilation;
    const auto reach = [&](std::int64_t steps) { return steps == -1 || steps > n / r ? n : steps * r; };
    if (branch.kind == ANNULUS_BRANCH_GLOBAL) {
        const Window global{branch.first_global, branch.global_count};
        return intersect(a, global).length > 0 || intersect(b, global).length > 0;
    }
    if (branch.kind == ANNULUS_BRANCH_WINDOW)
        return b.start - a.end() < std::max(reach(branch.left), problem.causal ? 0 : reach(branch.right));
    const std::int64_t w = branch.segment ? branch.segment : n;
    return (a.end() - 1) / w == b.start / w;
}

// Returns the distances at which a ring sends. A segment that two shards share needs every distance up to theirs, to
// later shards and, unless causal, to earlier ones.
std::set<int> expected_hops(const Problem &problem, const std::vector<Window> &shards) {
    const int ranks = static_cast<int>(shards.size());
    std::set<int> hops;
    for (int a = 0; a < ranks; ++a)
        for (int b = a + 1; b < ranks; ++b)
            for (const BranchSpec &branch : problem.branches) {
                if (shards[a].length == 0 || shards[b].length == 0 || !may_share(problem, branch, shards[a], shards[b]))
                    continue;
                for (int distance = 1; distance <= b - a; ++distance) {
                    hops.insert(distance);
                    if (!problem.causal)
                        hops.insert(ranks - distance);
                }
            }
    return hops;
}

// Checks the numbers of slots that `auto` finds, and that it selects by api/annulus/config.h: `gather` if no rank must
// hold more rows than the longest shard has; if the ring has more than 8 rounds, than four of the longest shards have.
void expect_choice(const Problem &problem, const Shards &shards) {
    Shards used = shards; // shards without rows take no part in it
    std::erase_if(used.pieces, [](const Window &shard) { return shard.length == 0; });
    used.owners.resize(used.pieces.size());
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), used, ANNULUS_EXCHANGE_RING);
    std::int64_t longest = 0, most = 0;
    GatherEffort effort;
    const auto bound = bound_slots(layout, effort), count = count_slots(layout, int64_max, effort);
    ASSERT_TRUE(bound && count);
    for (std::size_t to = 0; to < used.pieces.size(); ++to) {
        std::int64_t slots = 0;
        for (std::size_t from = 0; from < used.pieces.size(); ++from)
            for (const Message &message : make_messages(layout, static_cast<int>(from), static_cast<int>(to)))
                slots += message.slots();
        ASSERT_GE((*bound)[to], slots) << "shard " << to;
        ASSERT_GE((*count)[to], slots) << "shard " << to;
        ASSERT_TRUE((*count)[to] == slots || !is_closed_form(problem)) << "shard " << to;
        longest = std::max(longest, used.pieces[to].length);
        most = std::max(most, (*count)[to]);
    }
    const std::int64_t row_bytes = 2 * plan_problem_of(problem).kv_heads * problem.dim * dtype_bytes(problem.dtype);
    const std::int64_t room = std::max(expected_hops(problem, used.pieces).size() > 8 ? 4 * longest : longest,
                                       std::min(8 * longest, (std::int64_t{256} << 20) / row_bytes / problem.batch));
    ASSERT_EQ(chosen_exchange(problem, shards), most <= room ? ANNULUS_EXCHANGE_GATHER : ANNULUS_EXCHANGE_RING);
}

// Checks that the messages of all ranks have exactly the rows that the definition requires. Sender and receiver must
// plan the same messages, in the same rounds.
void expect_schedules(const Problem &problem, const Shards &shards, annulus_exchange exchange, const Wanted &wanted) {
    const int ranks = static_cast<int>(shards.pieces.size());
    const ShardLayout layout(pattern_of(problem), plan_problem_of(problem), shards, exchange);
    std::deque<ShardPlan> plans;
    for (int rank = 0; rank < ranks; ++rank) {
        Steps steps(call_planning_steps);
        plans.emplace_back(layout, rank, steps);
    }
    const bool is_ring = exchange == ANNULUS_EXCHANGE_RING;
    const std::set<int> hops = expected_hops(problem, shards.pieces);
    const std::vector<int> distances(hops.begin(), hops.end());
    const std::size_t rounds = is_ring ? hops.size() : !hops.empty();

    for (int rank = 0; rank < ranks; ++rank) {
        const Schedule &schedule = plans[rank].schedule();
        SCOPED_TRACE(testing::Message() << "rank " << rank);
        ASSERT_EQ(schedule.shard(), rank);
        ASSERT_EQ(schedule.round_count(), rounds);
        std::int64_t sent = 0, received = 0;
        for (const Round &round : schedule.rounds()) {
            expect_received_keys(plans[rank], static_cast<std::size_t>(&round - schedule.rounds().data()), wanted);
            ASSERT_LT(round.number, rounds);
            ASSERT_FALSE(round.sends.empty() && round.receives.empty());
            ASSERT_TRUE(&round == &schedule.rounds().front() || round.number > (&round - 1)->number);
            for (const Message *message : round.receives) {
                ASSERT_EQ(message->to, rank);
                received += message->total_rows();
            }
            std::map<int, std::vector<const Message *>> by_receiver;
            for (const Message *message : round.sends) {
                SCOPED_TRACE(testing::Message() << "to rank " << message->to);
                ASSERT_EQ(message->from, rank);
                ASSERT_TRUE(!is_ring || message->to == (rank + distances[round.number]) % ranks);
                expect_message(plans[rank].local(), *message, wanted);
                sent += message->total_rows();
                by_receiver[message->to].push_back(message);
            }
            for (const auto &[to, messages] : by_receiver) {
                SCOPED_TRACE(testing::Message() << "to rank " << to);
                // The receiver has the same messages, in the same order and round.
                const std::vector<Round> &theirs = plans[to].schedule().rounds();
                const auto same = std::ranges::find(theirs, round.number, &Round::number);
                ASSERT_NE(same, theirs.end());
                std::vector<const Message *> there = same->receives;
                std::erase_if(there, [&](const Message *message) { return message->from != rank; });
                ASSERT_EQ(there.size(), messages.size());
                for (std::size_t j = 0; j < messages.size(); ++j) {
                    ASSERT_EQ(fields(*there[j]), fields(*messages[j]));
                    for (std::int32_t g = 0; g < problem.kv(); ++g)
                        ASSERT_EQ(rows_of(plans[to].local(), *there[j], g),
                                  rows_of(plans[rank].local(), *messages[j], g));
                    // No two messages share rows.
                    for (std::size_t k = 0; k < j; ++k)
                        ASSERT_EQ(intersect(messages[k]->keys, messages[j]->keys).length, 0);
                }
            }
        }
        std::int64_t wanted_from_rank = 0, wanted_by_rank = 0;
        for (int other = 0; other < ranks; ++other) {
            wanted_from_rank += wanted.count(rank, other);
            wanted_by_rank += wanted.count(other, rank);
        }
        ASSERT_EQ(sent, wanted_from_rank);
        ASSERT_EQ(received, wanted_by_rank);
        const auto bytes = [&](std::int64_t rows, annulus_dtype dtype) {
            return static_cast<std::uint64_t>(2 * problem.batch * rows * problem.dim) * bytes_of(dtype);
        };
        const annulus_dtype sums = statistics_dtype(problem.dtype);
        ASSERT_EQ(plans[rank].sent_bytes(ANNULUS_PASS_FORWARD), bytes(sent, problem.dtype));
        ASSERT_EQ(plans[rank].received_bytes(ANNULUS_PASS_FORWARD), bytes(received, problem.dtype));
        ASSERT_EQ(plans[rank].sent_bytes(ANNULUS_PASS_BACKWARD), bytes(sent, problem.dtype) + bytes(received, sums));
        ASSERT_EQ(plans[rank].received_bytes(ANNULUS_PASS_BACKWARD),
                  bytes(received, problem.dtype) + bytes(sent, sums));
        ASSERT_EQ(plans[rank].communicates(), sent + received > 0);
    }
}

} // namespace

annulus_exchange chosen_exchange(const Problem &problem, const Shards &shards) {
    return choose_exchanges(pattern_of(problem), plan_problem_of(problem), {{0, problem.batch, {0, problem.length}}},
                            shards)
        .front();
}

void expect_schedules(const Problem &problem, const std::vector<std::int64_t> &lengths) {
    SCOPED_TRACE(testing::Message() << problem << "shards " << testing::PrintToString(lengths));
    const Shards shards = make_shards(lengths);
    const Wanted wanted(problem, shards.pieces);
    expect_choice(problem, shards);
    for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
        expect_schedules(problem, shards, exchange, wanted);
        if (testing::Test::HasFailure())
            return;
    }
}

} // namespace annulus::test
