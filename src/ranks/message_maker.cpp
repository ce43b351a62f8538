// SPDX-License-Identifier: Apache-2.0
#include "ranks/message_maker.hpp"

#include "core/error.hpp"

#include <algorithm>
#include <utility>

namespace annulus {

std::vector<Message> MessageMaker::make(int from, int to) {
    std::vector<Message> messages;
    if (from == to)
        return messages;
    if (const int peer = from == shard_ ? to : from; peer != peer_) {
        peer_ = peer;
        parts_of_peer_.clear();
    }
    const Window &keys = layout_.piece(from), &queries = layout_.piece(to);
    const std::optional<std::vector<Band>> bands =
        make_bands(plan_, shared_branches(plan_, keys, queries, steps_), keys, queries, steps_);
    if (!bands)
        refuse_heads();
    for (const Band &band : *bands) {
        if (!steps_.take(steps_of_message))
            refuse_heads();
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
    bool regular = true;
    std::vector<Progression> rows;
    counts_.clear();
    for (std::int32_t kv_head = 0; kv_head < plan_.problem().kv_heads; ++kv_head) {
        const bool is_listed = list_progressions(branches, heads_of(plan_, kv_head), rows);
        if (!steps_.take(static_cast<std::int64_t>(branches.size() + rows.size() * rows.size() / 2)))
            refuse_heads();
        if (!is_listed) {
            regular = false;
            message.rows.push_back(count_of_head(branches, kv_head, message));
            continue;
        }
        const std::vector<Progression> sets = without_contained(rows);
        if (sets.size() > 1)
            message.rows.push_back(count_of_head(branches, kv_head, message));
        else
            message.rows.push_back(sets.empty() ? 0 : sets[0].count);
        regular =
            regular && (sets.empty() || (sets.size() == 1 && (sets[0].count == 1 || sets[0].stride == message.stride)));
        message.firsts.push_back(sets.empty() ? 0 : sets[0].first);
    }
    if (!regular)
        message.firsts.clear();
}

// The rows of a key/value head, whatever its branches are.
std::int64_t MessageMaker::count_of_head(const std::vector<SharedBranch> &branches, std::int32_t kv_head,
                                         const Message &message) {
    constexpr std::size_t steps_of_wish = 4;
    if (!steps_.take(static_cast<std::int64_t>(steps_of_wish * branches.size())))
        refuse_heads();
    const HeadGroup heads = heads_of(plan_, kv_head);
    std::vector<Wish> wishes;
    std::vector<std::int64_t> key;
    for (const SharedBranch &shared : branches) {
        const ResidueRange used = shared.branch->residues(heads.first, heads.last);
        if (used.count == 0)
            continue;
        Wish wish{&shared, {}};
        if (shared.is_linear())
            intersect(used, shared.dilation(), shared.asked, wish.residues);
        else if (!shared.branch->queries_are_class())
            set_range(used, shared.dilation(), wish.residues);
        else
            intersect(used, shared.dilation(), part(message.to, shared, shared.queries).residues, wish.residues);
        key.insert(key.end(), {shared.index, static_cast<std::int64_t>(wish.residues.size())});
        for (const Interval &run : wish.residues)
            key.insert(key.end(), {run.begin, run.end});
        if (!steps_.take(static_cast<std::int64_t>(wish.residues.size())))
            refuse_heads();
        if (!wish.residues.empty())
            wishes.push_back(std::move(wish));
    }
    // Heads that want the same rows are counted once.
    const auto [known, is_new] = counts_.try_emplace(std::move(key), 0);
    if (is_new)
        known->second = count_union_of(message.from, wishes);
    return known->second;
}

std::int64_t MessageMaker::count_union_of(int from, std::vector<Wish> &wishes) {
    if (wishes.size() > 1 &&
        std::all_of(wishes.begin(), wishes.end(), [](const Wish &wish) { return wish.is_linear(); })) {
        for (Wish &wish : wishes)
            wish.rows = part(from, *wish.shared, wish.shared->keys).counts.count(wish.residues);
        if (const std::optional<std::int64_t> count = count_lines(wishes))
            return *count;
    }
    // Shards' parts of segments all begin or all end towards the other shard, so that one is inside the next: what
    // only the longer ones reach is counted apart.
    std::sort(wishes.begin(), wishes.end(),
              [](const Wish &a, const Wish &b) { return a.shared->keys.length > b.shared->keys.length; });
    std::int64_t count = 0;
    for (std::size_t i = 0; i < wishes.size(); ++i) {
        Window window = wishes[i].shared->keys;
        if (i + 1 < wishes.size()) {
            const Window &shorter = wishes[i + 1].shared->keys;
            if (window.start == shorter.start)
                window.start = shorter.end();
            window.length -= shorter.length;
        }
        if (window.length > 0)
            count +=
                count_union_in(window, from, {wishes.begin(), wishes.begin() + static_cast<std::ptrdiff_t>(i) + 1});
    }
    return count;
}

// The rows of wishes in a part of the keys, which they all reach.
std::int64_t MessageMaker::count_union_in(const Window &window, int from, std::vector<Wish> wishes) {
    for (Wish &wish : wishes) {
        wish.rows = part(from, *wish.shared, window).counts.count(wish.residues);
        if (!steps_.take(static_cast<std::int64_t>(wish.residues.size())))
            refuse_heads();
    }
    // The most first: where rows are looked at one by one, these are not, and other ones are soon found among them.
    std::sort(wishes.begin(), wishes.end(), [](const Wish &a, const Wish &b) { return a.rows > b.rows; });
    if (wishes[0].rows == window.length)
        return window.length;
    constexpr std::int64_t along_curve = 2, along_line = 1; // steps to find a place or a position
    std::int64_t count = wishes[0].rows, to_find = 0;
    for (std::size_t i = 1; i < wishes.size() && wishes[i].rows > 0; ++i) {
        to_find += wishes[i - 1].is_linear() ? along_line : along_curve;
        if (!steps_.take(product(wishes[i].rows, to_find + along_curve)))
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "branch %d and others want rows of rank %d, %lld of them for one head, that have to be told "
                        "from one another one by one: planning that takes more than %lld steps",
                        wishes[i].shared->index, layout_.owner(from), static_cast<long long>(wishes[i].rows),
                        static_cast<long long>(steps_.most()));
        count += count_new_rows(part(from, *wishes[i].shared, window), wishes, i);
    }
    return count;
}

// The rows of a wish, among these places, that none before it has.
std::int64_t MessageMaker::count_new_rows(const Part &part, const std::vector<Wish> &wishes, std::size_t index) {
    const Wish &wish = wishes[index];
    const auto before = wishes.begin() + static_cast<std::ptrdiff_t>(index);
    const std::int64_t r = wish.shared->dilation();
    std::int64_t count = 0;
    for (const Interval &places : part.places)
        for (std::int64_t place = places.begin; place < places.end;) {
            const std::int64_t residue = place % r, left = places.end - place;
            const auto next = std::partition_point(wish.residues.begin(), wish.residues.end(),
                                                   [&](const Interval &run) { return run.end <= residue; });
            const bool is_last = next == wish.residues.end();
            if (is_last || next->begin > residue) { // on to the next residue that is wanted, or to the next round
                place += std::min(left, (is_last ? r : next->begin) - residue);
                continue;
            }
            for (const std::int64_t end = place + std::min(left, next->end - residue); place < end; ++place) {
                const std::int64_t position = wish.shared->segment.position(place);
                count +=
                    std::none_of(wishes.begin(), before, [&](const Wish &earlier) { return earlier.wants(position); });
            }
        }
    return count;
}

// The rows of wishes along lines, from their progressions; nothing where that takes longer than to look at them, or
// half of the steps that are left.
std::optional<std::int64_t> MessageMaker::count_lines(const std::vector<Wish> &wishes) {
    const auto has_all = [](const Wish &wish) { return wish.rows == wish.shared->keys.length; };
    const auto wish_count = static_cast<std::int64_t>(wishes.size());
    std::int64_t most = 0, classes = 0;
    for (const Wish &wish : wishes) {
        most = std::min(steps_.left() / 2, most + product(wish.rows, wish_count));
        for (const Interval &run : wish.residues)
            classes += has_all(wish) ? 1 : std::min(run.length(), wish.rows);
    }
    if (product(classes, classes) / 2 > most)
        return std::nullopt;
    std::vector<Progression> rows;
    for (const Wish &wish : wishes) {
        if (has_all(wish)) {
            rows.push_back({wish.shared->keys.start, 1, wish.shared->keys.length});
            continue;
        }
        for (const Interval &run : wish.residues)
            for (std::int64_t residue = run.begin; residue < run.end; ++residue)
                rows.push_back(wish.shared->progression(residue));
    }
    std::int64_t left = most;
    const std::optional<std::int64_t> count = count_union(std::move(rows), left);
    steps_.take(most - std::max<std::int64_t>(0, left));
    return count;
}

const MessageMaker::Part &MessageMaker::part(int of, const SharedBranch &shared, const Window &window) {
    auto &parts = of == shard_ ? parts_ : parts_of_peer_;
    const std::tuple key(shared.index, window.start, window.length);
    const auto known = parts.find(key);
    if (known != parts.end())
        return known->second;
    const Curve &curve = shared.segment.curve;
    const std::int64_t begin = window.start - shared.segment.range.start, end = begin + window.length;
    constexpr std::int64_t steps_of_position = 2;
    if (!steps_.take(product(curve.border(begin, end), steps_of_position))) {
        if (curve.is_linear())
            refuse_heads();
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "branch %d in the Hilbert order, on a grid of %lld columns, goes over the border between ranks "
                    "%d and %d: planning that takes more than %lld steps",
                    shared.index, static_cast<long long>(curve.width()), layout_.owner(shard_), layout_.owner(peer_),
                    static_cast<long long>(steps_.most()));
    }
    std::vector<Interval> places = curve.runs(begin, end);
    ResidueCounts counts(shared.dilation(), places);
    ResidueSet residues = counts.occurring();
    return parts.emplace(key, Part{std::move(places), std::move(counts), std::move(residues)}).first->second;
}

void MessageMaker::refuse_heads() const {
    throw Error(ANNULUS_ERROR_UNSUPPORTED,
                "%zu shards, %d key/value heads and %zu branches are too many together: planning the messages of "
                "rank %d takes more than %lld steps",
                layout_.shards().pieces.size(), plan_.problem().kv_heads, plan_.branches().size(),
                layout_.owner(shard_), static_cast<long long>(steps_.most()));
}

} // namespace annulus
