// SPDX-License-Identifier: Apache-2.0
// Which keys of one shard the queries of another attend to, asked one by one or many at a time; for hosts and, all of
// it being constexpr, for kernels on a GPU.
#pragma once

#include "core/class_pairs.hpp"

#include <cstdint>

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

// What wants() says of one segment along a line, for the positions_of_count keys first, first + 1, …: those are wanted
// whose distance from the first of the residues that the heads use is short, and from the first of those that queries
// ask for.
class WantedKeys {
  public:
    WantedKeys() = default;
    constexpr WantedKeys(const CommonSegment &common, std::int32_t first_head, std::int32_t heads,
                         const Window &queries, std::int64_t first)
        : begin_(common.keys.start - first), end_(common.keys.end() - first), dilation_(common.branch.dilation()),
          of_residue_(static_cast<std::int32_t>(divide_up(positions_of_count, dilation_))) {
        const Window &range = common.segment.range, part = intersect(range, queries);
        ResidueRange asked{};
        if (part.length > 0)
            asked = residues_of_queries(common.branch, part.start - range.start, part.length);
        used_ = {common.branch.residues(first_head, first_head + heads), first - range.start, dilation_};
        asked_ = {asked, first - range.start, dilation_};
    }

    // Keys that may be wanted are candidate(0), candidate(1), …, so many: few, where heads use few residues.
    constexpr std::int32_t candidates() const {
        if (begin_ >= positions_of_count || end_ <= 0)
            return 0;
        return goes_by_residues() ? static_cast<std::int32_t>(used_.count) * of_residue_
                                  : static_cast<std::int32_t>(positions_of_count);
    }
    // Key first + candidate(i).
    constexpr std::int64_t candidate(std::int32_t i) const {
        if (!goes_by_residues())
            return i;
        const std::int64_t residue = i / of_residue_, to_start = dilation_ - used_.distance;
        const std::int64_t smallest = residue < used_.distance ? residue + to_start : residue - used_.distance;
        return smallest + i % of_residue_ * dilation_;
    }
    // Whether key first + i is wanted.
    constexpr bool has(std::int64_t i) const {
        return i < positions_of_count && i >= begin_ && i < end_ && used_.has(i, dilation_) && asked_.has(i, dilation_);
    }

  private:
    constexpr bool goes_by_residues() const { return used_.count <= positions_of_count / of_residue_; }

    // Some that follow one another, modulo the dilation.
    struct Residues {
        std::int64_t distance, count; // of key `first` from the first of them

        Residues() = default;
        constexpr Residues(const ResidueRange &residues, std::int64_t place, std::int64_t dilation)
            : distance(remainder(place - residues.first, dilation)), count(residues.count) {}
        // Of key first + i, i below positions_of_count.
        constexpr bool has(std::int64_t i, std::int64_t dilation) const {
            if (count >= dilation)
                return true;
            // A GPU divides numbers of 32 bits much faster.
            const std::int64_t rest =
                i < dilation ? i : static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(dilation);
            const std::int64_t to_end = dilation - rest;
            return (distance < to_end ? distance + rest : distance - to_end) < count;
        }
    };

    std::int64_t begin_, end_; // of the segment's keys, from `first` on
    std::int64_t dilation_;
    std::int32_t of_residue_; // keys, at most
    Residues used_, asked_;
};

// Calls use(i) for the keys first + i, of positions_of_count, that `heads` query heads want in a segment whose
// WantedKeys these are: thread `thread` of `threads` for its part of them, in no order.
template <class Use>
constexpr void for_each_wanted(const CommonSegment &common, const WantedKeys &keys, std::int32_t first_head,
                               std::int32_t heads, const Window &queries, std::int64_t first, std::int32_t thread,
                               std::int32_t threads, Use use) {
    const bool is_linear = common.segment.curve.is_linear();
    const auto candidates = is_linear ? keys.candidates() : static_cast<std::int32_t>(positions_of_count);
    for (std::int32_t i = thread; i < candidates; i += threads) {
        const std::int64_t key = is_linear ? keys.candidate(i) : i;
        if (is_linear ? keys.has(key) : wants(&common, 1, first_head, heads, queries, first + key))
            use(key);
    }
}

} // namespace annulus
