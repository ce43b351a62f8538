// SPDX-License-Identifier: Apache-2.0
#include "ranks/message_maker.hpp"

#include "core/error.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace annulus {

std::vector<Message> MessageMaker::make(int from, int to) {
    std::vector<Message> messages;
    if (from == to)
        return messages;
    if (const int peer = from == shard_ ? to : from; peer != peer_) {
        peer_ = peer;
        peer_parts_.clear();
    }
    const Window &keys = layout_.piece(from), &queries = layout_.piece(to);
    const std::optional<std::vector<Band>> bands =
        make_bands(plan_, shared_branches(plan_, keys, queries, steps_), keys, queries, steps_);
    if (!bands)
        refuse_planning();
    for (const Band &band : *bands) {
        if (!steps_.take(steps_per_message))
            refuse_planning();
        Message message{from, to, queries, band.outline.keys, band.outline.stride, {}, {}, {}};
        for (const SharedBranch &shared : band.branches)
            message.segments.push_back({*shared.branch, shared.segment, shared.keys});
        count_rows(band.branches, message);
        if (message.total_rows() > 0)
            messages.push_back(std::move(message));
    }
    return messages;
}

void MessageMaker::count_rows(const std::vector<SharedBranch> &branches, Message &message) {
    bool is_regular = true;
    std::vector<Progression> rows;
    known_counts_.clear();
    for (std::int32_t kv_head = 0; kv_head < plan_.problem().kv_heads; ++kv_head) {
        const bool is_listed = list_progressions(branches, heads_of(plan_, kv_head), rows);
        if (!steps_.take(static_cast<std::int64_t>(branches.size() + rows.size() * rows.size() / 2)))
            refuse_planning();
        if (!is_listed) {
            is_regular = false;
            message.rows.push_back(count_head_rows(branches, kv_head, message));
            continue;
        }
        const std::vector<Progression> sets = without_contained(rows);
        if (sets.size() > 1)
            message.rows.push_back(count_head_rows(branches, kv_head, message));
        else
            message.rows.push_back(sets.empty() ? 0 : sets[0].count);
        is_regular = is_regular &&
                     (sets.empty() || (sets.size() == 1 && (sets[0].count == 1 || sets[0].stride == message.stride)));
        message.firsts.push_back(sets.empty() ? 0 : sets[0].first);
    }
    if (!is_regular)
        message.firsts.clear();
}

std::int64_t MessageMaker::count_head_rows(const std::vector<SharedBranch> &branches, std::int32_t kv_head,
                                           const Message &message) {
    constexpr std::size_t steps_per_demand = 4;
    if (!steps_.take(static_cast<std::int64_t>(steps_per_demand * branches.size())))
        refuse_planning();
    const HeadGroup heads = heads_of(plan_, kv_head);
    std::vector<Demand> demands;
    std::vector<std::int64_t> key;
    for (const SharedBranch &shared : branches) {
        const ResidueRange used = shared.branch->residues(heads.first, heads.last);
        if (used.count == 0)
            continue;
        Demand demand{&shared, {}};
        if (shared.is_linear())
            intersect(used, shared.dilation(), shared.asked, demand.residues);
        else if (!shared.branch->queries_are_class())
            set_range(used, shared.dilation(), demand.residues);
        else
            intersect(used, shared.dilation(), segment_part(message.to, shared, shared.queries).residues,
                      demand.residues);
        key.insert(key.end(), {shared.index, static_cast<std::int64_t>(demand.residues.size())});
        for (const Interval &run : demand.residues)
            key.insert(key.end(), {run.begin, run.end});
        if (!steps_.take(static_cast<std::int64_t>(demand.residues.size())))
            refuse_planning();
        if (!demand.residues.empty())
            demands.push_back(std::move(demand));
    }
    // Heads with the same demands want the same rows, which are counted once.
    const auto [known, is_new] = known_counts_.try_emplace(std::move(key), 0);
    if (is_new)
        known->second = count_demanded_rows(message.from, demands);
    return known->second;
}

std::int64_t MessageMaker::count_demanded_rows(int from, std::vector<Demand> &demands) {
    if (demands.size() > 1 &&
        std::all_of(demands.begin(), demands.end(), [](const Demand &demand) { return demand.is_linear(); })) {
        for (Demand &demand : demands)
            demand.rows = segment_part(from, *demand.shared, demand.shared->keys).counts.count(demand.residues);
        if (const std::optional<std::int64_t> count = count_by_progressions(demands))
            return *count;
    }
    std::vector<Window> windows;
    for (const Demand &demand : demands)
        windows.push_back(demand.shared->keys);
    std::int64_t count = 0;
    std::vector<Demand> own; // the demands that share all keys of a piece; the others share none of them
    for (const Window &piece : cut_at_ends(windows)) {
        own.clear();
        std::ranges::copy_if(demands, std::back_inserter(own),
                             [&](const Demand &demand) { return intersect(demand.shared->keys, piece).length > 0; });
        if (!own.empty())
            count += count_demanded_rows_in(piece, from, own);
    }
    return count;
}

std::int64_t MessageMaker::count_demanded_rows_in(const Window &window, int from, std::vector<Demand> demands) {
    for (Demand &demand : demands) {
        demand.rows = segment_part(from, *demand.shared, window).counts.count(demand.residues);
        if (!steps_.take(static_cast<std::int64_t>(demand.residues.size())))
            refuse_planning();
    }
    // The largest demand comes first: its rows need no comparison, and most rows of other demands are soon found in it.
    std::sort(demands.begin(), demands.end(), [](const Demand &a, const Demand &b) { return a.rows > b.rows; });
    if (demands[0].rows == window.length)
        return window.length;
    constexpr std::int64_t along_curve = 2, along_line = 1; // steps to convert between a place and a position
    std::int64_t count = demands[0].rows, to_find = 0;
    for (std::size_t i = 1; i < demands.size() && demands[i].rows > 0; ++i) {
        to_find += demands[i - 1].is_linear() ? along_line : along_curve;
        if (!steps_.take(product(demands[i].rows, to_find + along_curve)))
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "branch %d and others want rows of rank %d, %lld of them for one head, that have to be told "
                        "from one another one by one: planning that takes more than %lld steps",
                        demands[i].shared->index, layout_.owner(from), static_cast<long long>(demands[i].rows),
                        static_cast<long long>(steps_.limit()));
        count += count_new_rows(segment_part(from, *demands[i].shared, window), demands, i);
    }
    return count;
}

std::int64_t MessageMaker::count_new_rows(const SegmentPart &segment_part, const std::vector<Demand> &demands,
                                          std::size_t index) {
    const Demand &demand = demands[index];
    const auto before = demands.begin() + static_cast<std::ptrdiff_t>(index);
    const std::int64_t r = demand.shared->dilation();
    std::int64_t count = 0;
    for (const Interval &places : segment_part.places)
        for (std::int64_t place = places.begin; place < places.end;) {
            const std::int64_t residue = place % r, left = places.end - place;
            const auto next = std::partition_point(demand.residues.begin(), demand.residues.end(),
                                                   [&](const Interval &run) { return run.end <= residue; });
            const bool is_last = next == demand.residues.end();
            if (is_last || next->begin > residue) { // to the next wanted residue, or to residue 0
                place += std::min(left, (is_last ? r : next->begin) - residue);
                continue;
            }
            for (const std::int64_t end = place + std::min(left, next->end - residue); place < end; ++place) {
                const std::int64_t position = demand.shared->segment.position(place);
                count += std::none_of(demands.begin(), before,
                                      [&](const Demand &earlier) { return earlier.wants(position); });
            }
        }
    return count;
}

std::optional<std::int64_t> MessageMaker::count_by_progressions(const std::vector<Demand> &demands) {
    const auto has_all = [](const Demand &demand) { return demand.rows == demand.shared->keys.length; };
    const auto demand_count = static_cast<std::int64_t>(demands.size());
    std::int64_t limit = 0, classes = 0;
    for (const Demand &demand : demands) {
        limit = std::min(steps_.left() / 2, limit + product(demand.rows, demand_count));
        for (const Interval &run : demand.residues)
            classes += has_all(demand) ? 1 : std::min(run.length(), demand.rows);
    }
    if (product(classes, classes) / 2 > limit)
        return std::nullopt;
    std::vector<Progression> rows;
    for (const Demand &demand : demands) {
        if (has_all(demand)) {
            rows.push_back({demand.shared->keys.start, 1, demand.shared->keys.length});
            continue;
        }
        for (const Interval &run : demand.residues)
            for (std::int64_t residue = run.begin; residue < run.end; ++residue)
                rows.push_back(demand.shared->progression(residue));
    }
    std::int64_t left = limit;
    const std::optional<std::int64_t> count = count_union(std::move(rows), left);
    steps_.take(limit - std::max<std::int64_t>(0, left));
    return count;
}

const MessageMaker::SegmentPart &MessageMaker::segment_part(int shard, const SharedBranch &shared,
                                                            const Window &window) {
    auto &known_parts = shard == shard_ ? own_parts_ : peer_parts_;
    const std::tuple key(shared.index, window.start, window.length);
    const auto known = known_parts.find(key);
    if (known != known_parts.end())
        return known->second;
    const Curve &curve = shared.segment.curve;
    const std::int64_t begin = window.start - shared.segment.range.start, end = begin + window.length;
    constexpr std::int64_t steps_per_position = 2;
    if (!steps_.take(product(curve.border(begin, end), steps_per_position))) {
        if (curve.is_linear())
            refuse_planning();
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "branch %d in the Hilbert order, on a grid of %lld columns, goes over the border between ranks "
                    "%d and %d: planning that takes more than %lld steps",
                    shared.index, static_cast<long long>(curve.width()), layout_.owner(shard_), layout_.owner(peer_),
                    static_cast<long long>(steps_.limit()));
    }
    std::vector<Interval> places = curve.runs(begin, end);
    ResidueCounts counts(shared.dilation(), places);
    ResidueSet residues = counts.occurring();
    return known_parts.emplace(key, SegmentPart{std::move(places), std::move(counts), std::move(residues)})
        .first->second;
}

void MessageMaker::refuse_planning() const {
    throw Error(ANNULUS_ERROR_UNSUPPORTED,
                "%zu shards, %d key/value heads and %zu branches are too many together: planning the messages of "
                "rank %d takes more than %lld steps",
                layout_.shards().pieces.size(), plan_.problem().kv_heads, plan_.branches().size(),
                layout_.owner(shard_), static_cast<long long>(steps_.limit()));
}

} // namespace annulus
