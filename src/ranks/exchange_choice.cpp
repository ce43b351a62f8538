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

} // namespace

bool gather_is_small(const Plan &plan, const std::vector<Window> &shards) {
    const int ranks = static_cast<int>(shards.size());
    const auto shard = [&](int rank) -> const Window & { return shards[static_cast<std::size_t>(rank)]; };
    std::int64_t longest = 0;
    for (const Window &window : shards)
        longest = std::max(longest, window.length);
    std::vector<std::int64_t> slots(shards.size()); // that each shard receives
    Steps steps(estimate_planning_steps), pairs(max_pairs);
    // The keys that a window branch reaches depend on how far apart the shards are.
    const bool has_windows = std::ranges::any_of(
        plan.branches(), [](const BranchPlan &branch) { return branch.kind() == ANNULUS_BRANCH_WINDOW; });
    for (const bool is_forward : {true, false}) {
        if (!is_forward && plan.causal())
            break;
        if (!steps.take(static_cast<std::int64_t>(shards.size() * plan.branches().size())))
            return false;
        const std::vector<std::size_t> shard_classes = classify(plan, shards, is_forward);
        // The slots from shard `from` to a receiver class, valid for receivers that the same number of branches reach.
        struct Known {
            int from = -1;
            std::size_t branches = 0;
            std::int64_t slots = 0;
        };
        std::vector<Known> known(shards.size());
        SlotCounter slot_counter(plan);
        std::vector<std::int64_t> reach;
        for (int from = 0; from < ranks; ++from) {
            const Window &keys = shard(from);
            if (keys.length == 0)
                continue;
            // How many positions the segments at the shard's border extend beyond it, as far as a window branch allows,
            // in ascending order.
            reach.clear();
            for (const BranchPlan &branch : plan.branches()) {
                const Window range = branch.segment(branch.segment_of(is_forward ? keys.end() - 1 : keys.start)).range;
                reach.push_back(is_forward ? std::min(range.end() - keys.end(), branch.bounds().before)
                                           : std::min(keys.start - range.start, branch.bounds().after));
            }
            std::sort(reach.begin(), reach.end());
            std::size_t short_reach_count = 0;
            for (int to = is_forward ? from + 1 : from - 1; to >= 0 && to < ranks; to += is_forward ? 1 : -1) {
                const Window &queries = shard(to);
                if (queries.length == 0)
                    continue;
                const std::int64_t apart = is_forward ? queries.start - keys.end() : keys.start - queries.end();
                while (short_reach_count < reach.size() && reach[short_reach_count] <= apart)
                    ++short_reach_count;
                const std::size_t branches = reach.size() - short_reach_count;
                if (branches == 0)
                    break;
                if (!pairs.take(1))
                    return false;
                const std::size_t receiver_class = shard_classes[static_cast<std::size_t>(to)];
                Known &message = known[receiver_class];
                if (message.from != from || message.branches != branches || has_windows) {
                    const std::optional<std::int64_t> count = slot_counter.slots(keys, queries, receiver_class, steps);
                    if (!count)
                        return false;
                    message = {from, branches, *count};
                }
                std::int64_t &sum = slots[static_cast<std::size_t>(to)];
                sum += message.slots;
                if (sum > longest)
                    return false;
            }
        }
    }
    return true;
}

} // namespace annulus
