// SPDX-License-Identifier: Apache-2.0
#include "core/summed_rows.hpp"

#include <utility>

namespace annulus {

SummedRows::SummedRows(const Plan &shard) : plan_(shard) {
    if (plan_.problem().queries.length > 0)
        for (const BranchPlan &branch : plan_.branches())
            add_bands(branch);
    std::ranges::stable_sort(bands_, {}, [](const Band &band) { return std::pair(band.stride, -band.rows.length); });
    drop_contained();
    for (std::size_t i = 0; i < bands_.size(); ++i) {
        Band &band = bands_[i];
        for (const Band &other : std::span(bands_).first(i))
            if (band.shares_a_head(other))
                band.first_row = std::max(band.first_row, other.end_row());
        count_ = std::max(count_, band.end_row());
    }
}

void SummedRows::add_bands(const BranchPlan &branch) {
    const Window &shard = plan_.problem().queries;
    const Segment first = branch.segment_at(shard.start), last = branch.segment_at(shard.end() - 1);
    const bool has_classes =
        branch.queries_are_class() && !branch.has_all_residues() && first.curve.is_linear() && last.curve.is_linear();
    const std::int64_t stride = has_classes ? branch.dilation() : 1;
    const auto add = [&](const Window &rows, const Segment &segment) {
        if (rows.length > 0)
            bands_.push_back({&branch, rows, stride, segment.range.start});
    };
    // The queries that may reach back over the start of the shard, and beyond its end. Causality is one of the bounds.
    const KeyBounds &bounds = branch.bounds();
    Window before{}, after{};
    if (first.range.start < shard.start)
        before = intersect(intersect(first.range, shard), {shard.start, bounds.before});
    if (last.range.end() > shard.end())
        after = intersect(intersect(last.range, shard), {shard.end() - bounds.after, bounds.after});
    if (first.range.start == last.range.start && after.length > 0 && before.end() >= after.start)
        return add(shard, first);
    add(before, first);
    add(after, last);
}

// Drops bands inside another band that has all queries of their heads.
void SummedRows::drop_contained() {
    std::vector<Band> kept;
    for (const Band &band : bands_)
        if (std::ranges::none_of(kept, [&](const Band &other) {
                return other.stride == 1 && other.has_heads_of(band) && intersect(other.rows, band.rows) == band.rows;
            }))
            kept.push_back(band);
    bands_ = std::move(kept);
}

} // namespace annulus
