// SPDX-License-Identifier: Apache-2.0
// Makes the messages of one shard, and counts the rows that each key/value head wants. The count is closed form if one
// branch wants rows, or if several branches do in the linear order. Otherwise the rows that several branches may share
// are compared one by one.
#pragma once

#include "ranks/schedule.hpp"
#include "ranks/shared_rows.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

namespace annulus {

class MessageMaker {
  public:
    // `layout` and `steps` outlive it. All functions throw Error(ANNULUS_ERROR_UNSUPPORTED) if the steps run out.
    MessageMaker(const ShardLayout &layout, int shard, Steps &steps)
        : layout_(layout), plan_(layout.plan()), shard_(shard), steps_(steps) {}

    // Returns the messages between two shards, one of which is `shard`. Each has rows. Segment parts of the other shard
    // stay cached until a call names a different one.
    std::vector<Message> make(int from, int to);

  private:
    // A shard's positions of a segment, as places in the segment's order.
    struct SegmentPart {
        std::vector<Interval> places;
        ResidueCounts counts;
        ResidueSet residues; // that a place has
    };
    using SegmentParts =
        std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, SegmentPart>; // by branch, start, length

    // The keys that a key/value head wants in one branch: all shared keys with these residues.
    struct Demand {
        const SharedBranch *shared;
        ResidueSet residues;
        std::int64_t rows = 0; // number of wanted keys in the window that is being counted

        bool is_linear() const { return shared->is_linear(); }
        bool wants(std::int64_t position) const {
            return contains(residues, shared->segment.place(position) % shared->dilation());
        }
    };

    // Returns the places of `window`, which is in a shared segment and belongs to one of the two shards.
    const SegmentPart &segment_part(int shard, const SharedBranch &shared, const Window &window);
    // Writes rows and firsts of a message.
    void count_rows(const std::vector<SharedBranch> &branches, Message &message);
    // Returns the number of rows that a key/value head wants, in any branches.
    std::int64_t count_head_rows(const std::vector<SharedBranch> &branches, std::int32_t kv_head,
                                 const Message &message);
    // Returns the number of keys of shard `from` that at least one demand wants.
    std::int64_t count_demanded_rows(int from, std::vector<Demand> &demands);
    // The same within a window of keys that all branches of the demands share.
    std::int64_t count_demanded_rows_in(const Window &window, int from, std::vector<Demand> demands);
    // Returns the number of these places that demand `index` wants and that no demand before it wants.
    static std::int64_t count_new_rows(const SegmentPart &segment_part, const std::vector<Demand> &demands,
                                       std::size_t index);
    // Returns the number of keys that at least one demand wants, by inclusion-exclusion of progressions. All demands
    // are in the linear order. Returns nothing if comparing rows one by one is faster, or if it would take half of the
    // steps that are left.
    std::optional<std::int64_t> count_by_progressions(const std::vector<Demand> &demands);
    // Throws because the shards, heads and branches are too many for the steps.
    [[noreturn]] void refuse_planning() const;

    const ShardLayout &layout_;
    const Plan &plan_;
    const int shard_;
    Steps &steps_;
    int peer_ = -1;
    SegmentParts own_parts_, peer_parts_;
    std::map<std::vector<std::int64_t>, std::int64_t> known_counts_; // rows of the message, by demands
};

} // namespace annulus
