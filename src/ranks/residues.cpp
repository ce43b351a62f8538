// SPDX-License-Identifier: Apache-2.0
#include "ranks/residues.hpp"

#include <algorithm>
#include <utility>

namespace annulus {

namespace {

// Calls use(begin, end) for the one or two intervals of a range, in order.
template <class Use> void for_each_interval(const ResidueRange &range, std::int64_t r, Use use) {
    const std::int64_t to_end = r - range.first;
    if (range.count >= r)
        return use(std::int64_t{0}, r);
    if (range.count > to_end)
        use(std::int64_t{0}, range.count - to_end);
    if (range.count > 0)
        use(range.first, range.first + std::min(range.count, to_end));
}

} // namespace

void set_range(const ResidueRange &range, std::int64_t r, ResidueSet &set) {
    set.clear();
    for_each_interval(range, r, [&](std::int64_t begin, std::int64_t end) { set.push_back({begin, end}); });
}

void intersect(const ResidueRange &range, std::int64_t r, const ResidueSet &set, ResidueSet &both) {
    both.clear();
    for_each_interval(range, r, [&](std::int64_t begin, std::int64_t end) {
        auto it = std::partition_point(set.begin(), set.end(),
                                       [&](const Interval &interval) { return interval.end <= begin; });
        for (; it != set.end() && it->begin < end; ++it)
            both.push_back({std::max(begin, it->begin), std::min(end, it->end)});
    });
}

bool contains(const ResidueSet &set, std::int64_t residue) {
    const auto it =
        std::partition_point(set.begin(), set.end(), [&](const Interval &interval) { return interval.end <= residue; });
    return it != set.end() && it->begin <= residue;
}

ResidueCounts::ResidueCounts(std::int64_t r, const std::vector<Interval> &places) : r_(r) {
    std::vector<std::pair<std::int64_t, std::int64_t>> changes; // (residue, change of `extra` from it on)
    for (const Interval &interval : places) {
        base_count_ += interval.length() / r;
        for_each_interval({interval.begin % r, interval.length() % r}, r, [&](std::int64_t begin, std::int64_t end) {
            changes.emplace_back(begin, 1);
            changes.emplace_back(end, -1);
        });
    }
    std::sort(changes.begin(), changes.end());
    Piece piece;
    for (const auto &[residue, change] : changes) {
        if (residue > piece.begin) {
            pieces_.push_back(piece);
            piece.below += (residue - piece.begin) * piece.extra;
            piece.begin = residue;
        }
        piece.extra += change;
    }
    if (piece.begin < r)
        pieces_.push_back(piece);
}

std::int64_t ResidueCounts::count(const ResidueSet &set) const {
    std::int64_t count = 0;
    for (const Interval &interval : set)
        count += below(interval.end) - below(interval.begin);
    return count;
}

ResidueSet ResidueCounts::occurring() const {
    ResidueSet set;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        if (base_count_ + pieces_[i].extra == 0)
            continue;
        const std::int64_t end = i + 1 < pieces_.size() ? pieces_[i + 1].begin : r_;
        if (!set.empty() && set.back().end == pieces_[i].begin)
            set.back().end = end;
        else
            set.push_back({pieces_[i].begin, end});
    }
    return set;
}

std::int64_t ResidueCounts::below(std::int64_t residue) const {
    const auto next = std::partition_point(pieces_.begin(), pieces_.end(),
                                           [&](const Piece &piece) { return piece.begin <= residue; });
    const Piece &piece = *(next - 1);
    return base_count_ * residue + piece.below + (residue - piece.begin) * piece.extra;
}

} // namespace annulus
