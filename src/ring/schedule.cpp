// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace annulus {

namespace {

// More than this many progressions of a head are counted row by row.
constexpr std::size_t most_progressions = 32;

// The wanted rows of one kv head, by global position.
struct HeadRows {
    std::vector<Progression> rows;
    Window hull;             // of all, empty where nothing is wanted
    bool is_complete = true; // else `rows` does not say all, and any row of the hull may be wanted

    void add(const Progression &progression) {
        if (progression.count == 0 || !is_complete)
            return;
        if (rows.size() == most_progressions)
            is_complete = false;
        else if (std::none_of(rows.begin(), rows.end(), [&](const Progression &p) {
                     return p.first == progression.first && p.stride == progression.stride &&
                            p.count == progression.count;
                 }))
            rows.push_back(progression);
    }

    void widen(std::int64_t first, std::int64_t last) {
        const std::int64_t start = hull.length ? std::min(hull.start, first) : first;
        const std::int64_t end = hull.length ? std::max(hull.end(), last + 1) : last + 1;
        hull = {start, end - start};
    }
};

// The segment of a branch that two shards have in common, and their parts of it.
struct SharedSegment {
    Segment segment;
    Window keys, queries;
};

std::optional<SharedSegment> shared_segment(const BranchPlan &branch, const Window &keys, const Window &queries) {
    if (keys.length == 0 || queries.length == 0)
        return std::nullopt;
    // It has the sender's position that is nearest to the receiver.
    const Segment segment = branch.segment(branch.segment_of(keys.start < queries.start ? keys.end() - 1 : keys.start));
    const SharedSegment shared{segment, intersect(segment.range, keys), intersect(segment.range, queries)};
    if (shared.queries.length == 0)
        return std::nullopt;
    return shared;
}

// What one head wants in one branch.
void add_rows(const BranchPlan &branch, std::int32_t head, const SharedSegment &shared, HeadRows &wanted) {
    const Segment &segment = shared.segment;
    if (!segment.curve.is_linear()) {
        wanted.is_complete = false;
        wanted.widen(shared.keys.start, shared.keys.end() - 1);
        return;
    }
    const std::int64_t origin = segment.range.start, r = branch.dilation();
    const Window keys{shared.keys.start - origin, shared.keys.length};
    const Window queries{shared.queries.start - origin, shared.queries.length};
    const auto add = [&](Progression places) {
        if (places.count == 0)
            return;
        places.first += origin;
        wanted.widen(places.first, places[places.count - 1]);
        wanted.add(places);
    };
    const auto add_class = [&](std::int64_t residue) {
        add(clip(branch.key_class(segment, residue), keys.start, keys.end()));
    };
    if (branch.query_rule() != ANNULUS_QUERY_RESIDUE) {
        const std::int64_t residue = branch.phase(head);
        if (clip(branch.query_class(segment, residue), queries.start, queries.end()).count > 0)
            add_class(residue);
    } else if (queries.length >= r) {
        add({keys.start, 1, keys.length});
    } else if (queries.length <= static_cast<std::int64_t>(most_progressions)) {
        for (std::int64_t i = 0; i < queries.length; ++i)
            add_class((queries.start + i) % r);
    } else {
        wanted.is_complete = false;
        wanted.widen(shared.keys.start, shared.keys.end() - 1);
    }
}

HeadRows wanted_rows(const Plan &plan, const Window &keys, const Window &queries, std::int32_t kv_head) {
    const std::int32_t group = plan.problem().heads / plan.problem().kv_heads;
    HeadRows wanted;
    for (const BranchPlan &branch : plan.branches())
        if (const std::optional<SharedSegment> shared = shared_segment(branch, keys, queries))
            for (std::int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
                if (branch.serves(head))
                    add_rows(branch, head, *shared, wanted);
    return wanted;
}

// How far apart the wanted rows of a head are at least, as a divisor of all distances between them; 0: there is one.
std::int64_t common_stride(const HeadRows &wanted) {
    if (!wanted.is_complete)
        return 1;
    std::int64_t stride = 0;
    for (const Progression &p : wanted.rows) {
        stride = std::gcd(stride, p.first - wanted.rows.front().first);
        if (p.count > 1)
            stride = std::gcd(stride, p.stride);
    }
    return stride;
}

// A message without the numbers of its rows. Where they cannot be told in closed form its keys may be too many.
Message outline(const Plan &plan, const std::vector<Window> &shards, int from, int to,
                std::vector<HeadRows> &wanted_of_heads) {
    Message message;
    message.from = from;
    message.to = to;
    message.queries = shards[static_cast<std::size_t>(to)];
    wanted_of_heads.clear();
    if (from == to || (plan.causal() && from > to))
        return message;
    const Window &keys = shards[static_cast<std::size_t>(from)];
    HeadRows all;
    std::int64_t stride = 0;
    for (std::int32_t kv_head = 0; kv_head < plan.problem().kv_heads; ++kv_head) {
        wanted_of_heads.push_back(wanted_rows(plan, keys, message.queries, kv_head));
        const HeadRows &wanted = wanted_of_heads.back();
        if (wanted.hull.length == 0)
            continue;
        all.widen(wanted.hull.start, wanted.hull.end() - 1);
        stride = std::gcd(stride, common_stride(wanted));
    }
    message.keys = all.hull;
    message.stride = stride == 0 ? std::max<std::int64_t>(1, all.hull.length) : stride;
    return message;
}

// All positions of the segments that a shard has a part of.
Window reach_of(const Plan &plan, const Window &shard) {
    Window reach = shard;
    for (const BranchPlan &branch : plan.branches()) {
        const Window first = branch.segment(branch.segment_of(shard.start)).range;
        const Window last = branch.segment(branch.segment_of(shard.end() - 1)).range;
        const std::int64_t start = std::min(reach.start, first.start);
        reach = {start, std::max(reach.end(), last.end()) - start};
    }
    return reach;
}

// Whether for every rank the slots of all it receives are no more than the longest shard has positions.
bool gather_is_small(const Plan &plan, const std::vector<Window> &shards) {
    std::int64_t longest = 0;
    for (const Window &shard : shards)
        longest = std::max(longest, shard.length);
    std::vector<HeadRows> unused;
    const int ranks = static_cast<int>(shards.size());
    for (int to = 0; to < ranks; ++to) {
        const Window &shard = shards[static_cast<std::size_t>(to)];
        if (shard.length == 0)
            continue;
        const Window reach = reach_of(plan, shard);
        std::int64_t slots = 0;
        for (int from = 0; from < ranks && slots <= longest; ++from)
            if (intersect(reach, shards[static_cast<std::size_t>(from)]).length > 0)
                slots += outline(plan, shards, from, to, unused).slots();
        if (slots > longest)
            return false;
    }
    return true;
}

} // namespace

std::int64_t Message::total_rows() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

Message make_message(const Plan &plan, const std::vector<Window> &shards, int from, int to) {
    std::vector<HeadRows> wanted_of_heads;
    Message message = outline(plan, shards, from, to, wanted_of_heads);
    if (message.empty())
        return message;
    bool regular = true;
    for (std::int32_t kv_head = 0; kv_head < plan.problem().kv_heads; ++kv_head) {
        const HeadRows &wanted = wanted_of_heads[static_cast<std::size_t>(kv_head)];
        std::int64_t count = 0;
        if (wanted.is_complete) {
            const std::vector<Progression> sets = without_contained(wanted.rows);
            std::int64_t terms = INT64_MAX;
            count = *count_union(sets, terms);
            regular =
                regular && (sets.empty() || (sets.size() == 1 && (count == 1 || sets[0].stride == message.stride)));
            message.firsts.push_back(sets.empty() ? 0 : sets[0].first);
        } else {
            for_each_row(plan, message, kv_head, [&](std::int64_t) { ++count; });
            regular = false;
        }
        message.rows.push_back(count);
    }
    if (!regular)
        message.firsts.clear();
    if (message.total_rows() == 0)
        message.keys = {};
    return message;
}

Schedule::Schedule(const Plan &plan, std::vector<Window> shards, int rank, annulus_exchange exchange)
    : shards_(std::move(shards)), rank_(rank), exchange_(exchange) {
    if (exchange_ == ANNULUS_EXCHANGE_AUTO)
        exchange_ = gather_is_small(plan, shards_) ? ANNULUS_EXCHANGE_GATHER : ANNULUS_EXCHANGE_RING;
    const int ranks = static_cast<int>(shards_.size());
    for (int hop = 1; hop < ranks; ++hop) {
        outgoing_.push_back(make_message(plan, shards_, rank_, (rank_ + hop) % ranks));
        incoming_.push_back(make_message(plan, shards_, (rank_ - hop + ranks) % ranks, rank_));
    }
    // Hops in which this rank has nothing to do stand there too: messages between two ranks have one order on both.
    if (exchange_ == ANNULUS_EXCHANGE_RING)
        rounds_.resize(outgoing_.size());
    else
        rounds_.resize(outgoing_.empty() ? 0 : 1);
    for (std::size_t i = 0; i < outgoing_.size(); ++i) {
        Round &round = rounds_[exchange_ == ANNULUS_EXCHANGE_RING ? i : 0];
        if (!outgoing_[i].empty())
            round.sends.push_back(&outgoing_[i]);
        if (!incoming_[i].empty())
            round.receives.push_back(&incoming_[i]);
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
