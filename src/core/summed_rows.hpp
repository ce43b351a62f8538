// SPDX-License-Identifier: Apache-2.0
// The queries of a shard whose results are sums over several key scopes: they may have keys in other shards. All other
// queries get their results from the own keys alone.
//
// Such a query is in a segment that a border of the shard cuts. So each branch has them in one or two bands: intervals
// of positions that end at a border. In a band, a head has the queries of one class, or all of them.
#pragma once

#include "core/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace annulus {

class SummedRows {
  public:
    // `shard` has the shard's rows as queries and keys.
    explicit SummedRows(const Plan &shard);

    // Returns how many sums a head has room for. It may be more than the head has such queries.
    std::int64_t count() const { return count_; }

    // Calls use(position, row) for the queries of a head in a window. `row` is from 0 to count() - 1, and no two
    // queries of a head have the same.
    template <class Use> void for_each(std::int32_t head, const Window &window, Use use) const {
        for (std::size_t i = 0; i < bands_.size(); ++i) {
            const Band &band = bands_[i];
            const Window part = intersect(window, band.rows);
            if (part.length == 0 || !band.branch->serves(head))
                continue;
            const std::int64_t first = part.start + remainder(band.origin(head) - part.start, band.stride);
            for (std::int64_t position = first; position < part.end(); position += band.stride)
                if (!has(std::span(bands_).first(i), head, position))
                    use(position, band.first_row + (position - band.rows.start) / band.stride);
        }
    }

  private:
    struct Band {
        const BranchPlan *branch; // of plan_
        Window rows;
        std::int64_t stride;        // between the queries of a head
        std::int64_t segment_start; // of the segment that the border cuts
        std::int64_t first_row = 0;

        // Returns a position that has the class of the head's queries.
        std::int64_t origin(std::int32_t head) const { return segment_start + (stride == 1 ? 0 : branch->phase(head)); }
        bool has(std::int32_t head, std::int64_t position) const {
            return position >= rows.start && position < rows.end() && branch->serves(head) &&
                   (position - origin(head)) % stride == 0;
        }
        std::int32_t end_head() const { return branch->first_head() + branch->head_count(); }
        bool shares_a_head(const Band &other) const {
            return branch->first_head() < other.end_head() && other.branch->first_head() < end_head();
        }
        bool has_heads_of(const Band &other) const {
            return branch->first_head() <= other.branch->first_head() && other.end_head() <= end_head();
        }
        std::int64_t end_row() const { return first_row + divide_up(rows.length, stride); }
    };

    static bool has(std::span<const Band> bands, std::int32_t head, std::int64_t position) {
        return std::ranges::any_of(bands, [&](const Band &band) { return band.has(head, position); });
    }
    void add_bands(const BranchPlan &branch);
    void drop_contained();

    const Plan plan_;
    std::vector<Band> bands_; // by stride, then the longest first
    std::int64_t count_ = 0;
};

} // namespace annulus
