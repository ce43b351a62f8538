// SPDX-License-Identifier: Apache-2.0
#include "core/summed_rows.hpp"

#include <tuple>
#include <utility>

namespace annulus {

namespace {

void add_bands(const BranchPlan &branch, const Window &shard, std::vector<SummedBand> &bands) {
    const Segment first = branch.segment_at(shard.start), last = branch.segment_at(shard.end() - 1);
    const bool has_classes =
        branch.queries_are_class() && !branch.has_all_residues() && first.curve.is_linear() && last.curve.is_linear();
    const auto add = [&](const Window &rows) {
        if (rows.length > 0)
            bands.push_back({rows, branch.segment_length(), has_classes ? branch.dilation() : 1, branch.first_head(),
                             branch.head_count(), branch.first_phase(), branch.heads_of_phase()});
    };
    // The queries that may reach back over the start of the shard, and beyond its end. Causality is one of the bounds.
    const KeyBounds &bounds = branch.bounds();
    Window before{}, after{};
    if (first.range.start < shard.start)
        before = intersect(intersect(first.range, shard), {shard.start, bounds.before});
    if (last.range.end() > shard.end())
        after = intersect(intersect(last.range, shard), {shard.end() - bounds.after, bounds.after});
    if (first.range.start == last.range.start && after.length > 0 && before.end() >= after.start)
        return add(shard);
    add(before);
    add(after);
}

std::vector<SummedBand> bands_of(const Plan &shard) {
    std::vector<SummedBand> bands;
    const Window &queries = shard.problem().queries;
    if (queries.length > 0)
        for (const BranchPlan &branch : shard.branches())
            add_bands(branch, queries, bands);
    return bands;
}

bool share_a_head(const SummedBand &a, const SummedBand &b) {
    return a.first_head < b.end_head() && b.first_head < a.end_head();
}

// True if a head's rows of all segments are positions with one remainder modulo the stride.
bool are_one_class(const SummedBand &band) {
    return band.segment_length % band.stride == 0 || band.rows.end() <= band.segment_length;
}

// True if the classes of a band have every row of the classes of `inner`, in the positions and heads of both.
bool classes_contain(const SummedBand &band, const SummedBand &inner) {
    const auto phases = [](const SummedBand &of) {
        return std::tuple(of.first_head, of.first_phase, of.heads_of_phase);
    };
    if (band.stride == 1)
        return true;
    if (phases(band) != phases(inner))
        return false;
    if (band.stride == inner.stride && band.segment_length == inner.segment_length)
        return true;
    return band.first_phase == 0 && inner.stride % band.stride == 0 && are_one_class(band) && are_one_class(inner);
}

// True if a band has every row of `inner`.
bool contains(const SummedBand &band, const SummedBand &inner) {
    return classes_contain(band, inner) && band.first_head <= inner.first_head && inner.end_head() <= band.end_head() &&
           intersect(band.rows, inner.rows) == inner.rows;
}

} // namespace

SummedRows::SummedRows(const Plan &shard) : SummedRows(bands_of(shard)) {}

SummedRows::SummedRows(std::vector<SummedBand> bands) : bands_(std::move(bands)) {
    std::ranges::stable_sort(bands_, {},
                             [](const SummedBand &band) { return std::pair(band.stride, -band.rows.length); });
    drop_contained();
    for (std::size_t i = 0; i < bands_.size(); ++i) {
        SummedBand &band = bands_[i];
        band.first_row = 0;
        for (const SummedBand &other : std::span(bands_).first(i))
            if (share_a_head(band, other))
                band.first_row = std::max(band.first_row, other.end_row());
        count_ = std::max(count_, band.end_row());
    }
}

void SummedRows::drop_contained() {
    std::vector<SummedBand> kept;
    for (const SummedBand &band : bands_)
        if (std::ranges::none_of(kept, [&](const SummedBand &other) { return contains(other, band); }))
            kept.push_back(band);
    bands_ = std::move(kept);
}

} // namespace annulus
