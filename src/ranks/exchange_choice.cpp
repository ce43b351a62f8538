// SPDX-License-Identifier: Apache-2.0
#include "ranks/exchange_choice.hpp"

#include "ranks/shared_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace annulus {

namespace {

// Returns the number of each shard's receiver class. The shards of a class ask for the same residues of the segments
// that they share with shards before them (or after them). Receivers of a class that share the same branches with a
// sender get messages with the same number of slots.
std::vector<std::size_t> classify(const Plan &plan, const std::vector<Window> &shards, bool sender_is_before) {
    std::map<std::vector<std::int64_t>, std::size_t> classes;
    std::vector<std::size_t> shard_classes;
    ResidueSet asked, used;
    for (const Window &shard : shards) {
        std::vector<std::int64_t> key;
        for (std::size_t i = 0; shard.length > 0 && i < plan.branches().size(); ++i) {
            const BranchPlan &branch = plan.branches()[i];
            const std::int64_t r = branch.dilation();
            const Segment segment = branch.segment(branch.segment_of(sender_is_before ? shard.start : shard.end() - 1));
            if (!segment.curve.is_linear())
                continue; // a curve's shared keys all count, whatever the residues
            const Window part = intersect(segment.range, shard);
            set_range(residues_of_queries(branch, part.start - segment.range.start, part.length), r, asked);
            intersect(branch.residues(0, plan.problem().heads), r, asked, used);
            key.insert(key.end(), {static_cast<std::int64_t>(i), static_cast<std::int64_t>(used.size())});
            for (const Interval &run : used)
                key.insert(key.end(), {run.begin, run.end});
        }
        shard_classes.push_back(classes.try_emplace(std::move(key), classes.size()).first->second);
    }
    return shard_classes;
}

// Counts the slots of messages in one direction. The count is cached by the class of the receiver, and by the length
// and first residue of the sender's keys in each shared segment.
class SlotCounter {
  public:
    explicit SlotCounter(const Plan &plan) : plan_(plan) {}

    // Returns the slots of all messages from `keys` to `queries`, or nothing if the steps run out.
    std::optional<std::int64_t> slots(const Window &keys, const Window &queries, std::size_t receiver_class,
                                      Steps &steps) {
        std::vector<SharedBranch> branches = shared_branches(plan_, keys, queries, steps);
        std::vector<std::int64_t> key{static_cast<std::int64_t>(receiver_class)};
        for (const SharedBranch &shared : branches)
            key.insert(key.end(), {shared.index, shared.keys.length,
                                   (shared.keys.start - shared.segment.range.start) % shared.dilation()});
        const auto [known, is_new] = known_.try_emplace(std::move(key), 0);
        if (is_new) {
            const std::optional<std::vector<Band>> bands = make_bands(plan_, std::move(branches), keys, queries, steps);
            if (!bands)
                return std::nullopt;
            for (const Band &band : *bands)
                known->second += band.outline.slots();
        }
        if (!steps.take(1))
            return std::nullopt;
        return known->second;
    }

  private:
    const Plan &plan_;
    std::map<std::vector<std::int64_t>, std::int64_t> known_;
};

// The most pairs of shards that are looked at, which is every pair of 8192 shards. A pair takes some nanoseconds if its
// slots are cached.
constexpr std::int64_t max_pairs = std::int64_t{1} << 26;

// Counts the slots that each shard receives, until one receives more than the longest shard has positions.
class GatherCount {
  public:
    GatherCount(const Plan &plan, const std::vector<Window> &shards)
        : plan_(plan), shards_(shards), slots_(shards.size()) {
        for (const Window &window : shards)
            longest_ = std::max(longest_, window.length);
    }

    // Counts the messages to later shards, or to earlier ones. Returns false if a shard receives too much, or if the
    // steps run out.
    bool add_messages(bool is_forward) {
        if (!steps_.take(static_cast<std::int64_t>(shards_.size() * plan_.branches().size())))
            return false;
        classes_ = classify(plan_, shards_, is_forward);
        known_.assign(shards_.size(), {});
        SlotCounter slot_counter(plan_);
        for (int from = 0; from < static_cast<int>(shards_.size()); ++from)
            if (shard(from).length > 0 && !add_messages_of(from, is_forward, slot_counter))
                return false;
        return true;
    }

  private:
    // The slots from shard `from` to a receiver class, valid for receivers that the same number of branches reach.
    struct Known {
        int from = -1;
        std::size_t branches = 0;
        std::int64_t slots = 0;
    };

    const Window &shard(int index) const { return shards_[static_cast<std::size_t>(index)]; }

    // Finds how many positions the segments at the shard's border extend beyond it, as far as windows allow, in
    // ascending order; and the largest such number of a window.
    void find_reaches(const Window &keys, bool is_forward) {
        reaches_.clear();
        window_reach_ = 0;
        for (const BranchPlan &branch : plan_.branches()) {
            const Window range = branch.segment(branch.segment_of(is_forward ? keys.end() - 1 : keys.start)).range;
            reaches_.push_back(is_forward ? std::min(range.end() - keys.end(), branch.bounds().before)
                                          : std::min(keys.start - range.start, branch.bounds().after));
            if (branch.kind() == ANNULUS_BRANCH_WINDOW)
                window_reach_ = std::max(window_reach_, reaches_.back());
        }
        std::sort(reaches_.begin(), reaches_.end());
    }

    bool add_messages_of(int from, bool is_forward, SlotCounter &slot_counter) {
        const Window &keys = shard(from);
        find_reaches(keys, is_forward);
        std::size_t short_reach_count = 0;
        const int ranks = static_cast<int>(shards_.size()), step = is_forward ? 1 : -1;
        for (int to = from + step; to >= 0 && to < ranks; to += step) {
            const Window &queries = shard(to);
            if (queries.length == 0)
                continue;
            const std::int64_t apart = is_forward ? queries.start - keys.end() : keys.start - queries.end();
            while (short_reach_count < reaches_.size() && reaches_[short_reach_count] <= apart)
                ++short_reach_count;
            const std::size_t branches = reaches_.size() - short_reach_count;
            if (branches == 0)
                break;
            if (!pairs_.take(1))
                return false;
            const std::size_t receiver_class = classes_[static_cast<std::size_t>(to)];
            Known &message = known_[receiver_class];
            // The keys that a window reaches depend on how far apart the shards are.
            if (message.from != from || message.branches != branches || apart < window_reach_) {
                const std::optional<std::int64_t> count = slot_counter.slots(keys, queries, receiver_class, steps_);
                if (!count)
                    return false;
                message = {from, branches, *count};
            }
            std::int64_t &sum = slots_[static_cast<std::size_t>(to)];
            sum += message.slots;
            if (sum > longest_)
                return false;
        }
        return true;
    }

    const Plan &plan_;
    const std::vector<Window> &shards_;
    std::int64_t longest_ = 0;
    std::vector<std::int64_t> slots_; // that each shard receives
    Steps steps_{estimate_planning_steps}, pairs_{max_pairs};
    std::vector<std::size_t> classes_; // of the receivers, in the direction that is counted
    std::vector<Known> known_;         // by receiver class
    std::vector<std::int64_t> reaches_;
    std::int64_t window_reach_ = 0;
};

} // namespace

bool gather_is_small(const Plan &plan, const std::vector<Window> &shards) {
    GatherCount count(plan, shards);
    return count.add_messages(true) && (plan.causal() || count.add_messages(false));
}

} // namespace annulus
