// SPDX-License-Identifier: Apache-2.0
// The wanted keys: keys of one shard that queries of another shard attend to. wants() tests one key, WantedKeys tests a
// piece of consecutive keys. All is constexpr, for the host and for GPU kernels.
#pragma once

#include "core/class_pairs.hpp"

#include <cstdint>

namespace annulus {

// The segment of a branch that two shards have in common, and the sender's keys in it. For a window branch they are the
// keys that some query of the receiver has within its bounds. A bound is a multiple of the dilation or has no limit, so
// each class has exactly the keys that its queries reach.
struct CommonSegment {
    BranchPlan branch;
    Segment segment;
    Window keys;
};

// True if `queries` holds a query of `heads` query heads that attends to position `key` in one of `count` segments.
// `queries` are positions of another shard.
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

// Positions in a piece. Wanted rows that have no closed form are searched for one piece at a time.
constexpr std::int64_t key_piece_length = 8192;

// Gives the same answers as wants() for the keys of one segment in a piece, which begins with key `first`. The segment
// must be in the linear order. A key is wanted if the heads use its residue and a query asks for its residue.
class WantedKeys {
  public:
    WantedKeys() = default;
    constexpr WantedKeys(const CommonSegment &common, std::int32_t first_head, std::int32_t heads,
                         const Window &queries, std::int64_t first)
        : dilation_(common.branch.dilation()) {
        const Window &range = common.segment.range, part = intersect(range, queries);
        const Window keys = intersect(common.keys, {first, key_piece_length});
        begin_ = static_cast<std::int32_t>(keys.start - first);
        count_ = static_cast<std::int32_t>(keys.length);
        keys_per_residue_ = static_cast<std::int32_t>(divide_up(keys.length, dilation_));
        ResidueRange asked{};
        if (part.length > 0)
            asked = residues_of_queries(common.branch, part.start - range.start, part.length);
        used_ = {common.branch.residues(first_head, first_head + heads), keys.start - range.start, dilation_};
        asked_ = {asked, keys.start - range.start, dilation_};
    }

    // The first key of the segment in the piece, as distance from the piece's first key, and how many there are.
    constexpr std::int32_t begin() const { return begin_; }
    constexpr std::int32_t count() const { return count_; }
    // Returns the number of candidates: keys that may be wanted. They are few if the heads use few residues.
    constexpr std::int32_t candidate_count() const {
        return goes_by_residues() ? static_cast<std::int32_t>(used_.count) * keys_per_residue_ : count_;
    }
    // Returns the distance of candidate i from key begin().
    constexpr std::int64_t candidate(std::int32_t i) const {
        if (!goes_by_residues())
            return i;
        const std::int64_t residue = i / keys_per_residue_, to_start = dilation_ - used_.distance;
        const std::int64_t smallest = residue < used_.distance ? residue + to_start : residue - used_.distance;
        return smallest + i % keys_per_residue_ * dilation_;
    }
    // True if the key at this distance from key begin() is wanted.
    constexpr bool has(std::int64_t i) const {
        return i < count_ && used_.has(i, dilation_) && asked_.has(i, dilation_);
    }

  private:
    // True if the candidates are the keys with the residues that the heads use. Otherwise they are all keys.
    constexpr bool goes_by_residues() const { return used_.count * keys_per_residue_ <= count_; }

    // `count` consecutive residues modulo the dilation.
    struct Residues {
        std::int64_t distance, count; // distance: from the first residue to the residue of key begin()

        Residues() = default;
        constexpr Residues(const ResidueRange &residues, std::int64_t place, std::int64_t dilation)
            : distance(remainder(place - residues.first, dilation)), count(residues.count) {}
        // True if key begin() + i has one of the residues; 0 <= i < key_piece_length.
        constexpr bool has(std::int64_t i, std::int64_t dilation) const {
            if (count >= dilation)
                return true;
            // A GPU divides 32-bit numbers much faster.
            const std::int64_t rest =
                i < dilation ? i : static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(dilation);
            const std::int64_t to_end = dilation - rest;
            return (distance < to_end ? distance + rest : distance - to_end) < count;
        }
    };

    std::int64_t dilation_;
    std::int32_t begin_, count_;
    std::int32_t keys_per_residue_; // at most
    Residues used_, asked_;         // residues that the heads use, and that queries ask for
};

// Calls use(i) for each key first + i of a piece that `heads` query heads want in a segment, in no order. `keys` are
// the WantedKeys of the segment and piece. Thread `thread` of `threads` takes its share of the keys.
template <class Use>
constexpr void for_each_wanted(const CommonSegment &common, const WantedKeys &keys, std::int32_t first_head,
                               std::int32_t heads, const Window &queries, std::int64_t first, std::int32_t thread,
                               std::int32_t threads, Use use) {
    const bool is_linear = common.segment.curve.is_linear();
    const std::int32_t candidate_count = is_linear ? keys.candidate_count() : keys.count();
    for (std::int32_t i = thread; i < candidate_count; i += threads) {
        const std::int64_t key = is_linear ? keys.candidate(i) : i, of_piece = keys.begin() + key;
        if (is_linear ? keys.has(key) : wants(&common, 1, first_head, heads, queries, first + of_piece))
            use(of_piece);
    }
}

} // namespace annulus
