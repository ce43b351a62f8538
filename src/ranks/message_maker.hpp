// SPDX-License-Identifier: Apache-2.0
// The messages of one shard. How many rows a head wants is counted in closed form where one branch wants them, or
// several along lines; else what several want of the same keys is told apart row by row.
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
    // `layout` and `steps` outlive it. Throws Error(ANNULUS_ERROR_UNSUPPORTED) where the steps run out.
    MessageMaker(const ShardLayout &layout, int shard, Steps &steps)
        : layout_(layout), plan_(layout.plan()), shard_(shard), steps_(steps) {}

    // From `shard` or to it, all with rows. What was learnt of another shard stays until the next one's turn.
    std::vector<Message> make(int from, int to);

  private:
    // A shard's part of a segment, along the segment's order.
    struct Part {
        std::vector<Interval> places;
        ResidueCounts counts;
        ResidueSet residues; // that occur
    };
    using Parts = std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, Part>; // of a branch, start, length

    // What a key/value head wants in one branch; `rows` of it in the window at hand.
    struct Wish {
        const SharedBranch *shared;
        ResidueSet residues;
        std::int64_t rows = 0;

        bool is_linear() const { return shared->is_linear(); }
        bool wants(std::int64_t position) const {
            return contains(residues, shared->segment.place(position) % shared->dilation());
        }
    };

    const Part &part(int of, const SharedBranch &shared, const Window &window);
    void count_rows(const std::vector<SharedBranch> &branches, Message &message);
    std::int64_t count_of_head(const std::vector<SharedBranch> &branches, std::int32_t kv_head, const Message &message);
    std::int64_t count_union_of(int from, std::vector<Wish> &wishes);
    std::int64_t count_union_in(const Window &window, int from, std::vector<Wish> wishes);
    static std::int64_t count_new_rows(const Part &part, const std::vector<Wish> &wishes, std::size_t index);
    std::optional<std::int64_t> count_lines(const std::vector<Wish> &wishes);
    [[noreturn]] void refuse_heads() const;

    const ShardLayout &layout_;
    const Plan &plan_;
    const int shard_;
    Steps &steps_;
    int peer_ = -1;
    Parts parts_, parts_of_peer_;
    std::map<std::vector<std::int64_t>, std::int64_t> counts_; // of the message at hand, by what is wanted
};

} // namespace annulus
