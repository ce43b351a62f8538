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

// Shards whose queries ask for the same residues, of segments that reach back to shards before them, or on to those
// behind: a class has a number. Shards far from one another differ in nothing else.
std::vector<std::size_t> classify(const Plan &plan, const std::vector<Window> &shards, bool from_before) {
    std::map<std::vector<std::int64_t>, std::size_t> classes;
    std::vector<std::size_t> class_of_shard;
    ResidueSet asked, used;
    for (const Window &shard : shards) {
        std::vector<std::int64_t> key;
        for (std::size_t i = 0; shard.length > 0 && i < plan.branches().size(); ++i) {
            const BranchPlan &branch = plan.branches()[i];
            const std::int64_t r = branch.dilation();
            const Segment segment = branch.segment(branch.segment_of(from_before ? shard.start : shard.end() - 1));
            if (!segment.curve.is_linear())
                continue; // counts whole
            const Window part = intersect(segment.range, shard);
            set_range(residues_of_queries(branch, part.start - segment.range.start, part.length), r, asked);
            intersect(branch.residues(0, plan.problem().heads), r, asked, used);
            key.insert(key.end(), {static_cast<std::int64_t>(i), static_cast<std::int64_t>(used.size())});
            for (const Interval &run : used)
                key.insert(key.end(), {run.begin, run.end});
        }
        class_of_shard.push_back(classes.try_emplace(std::move(key), classes.size()).first->second);
    }
    return class_of_shard;
}

// The slots of messages in one direction. Those to a class of shards are as many from every shard whose part of the
// segments begins with the same residues.
class Outlines {
  public:
    explicit Outlines(const Plan &plan) : plan_(plan) {}

    // Nothing where that takes too many steps.
    std::optional<std::int64_t> slots(const Window &keys, const Window &queries, std::size_t reader, Steps &steps) {
        std::vector<SharedBranch> branches = shared_branches(plan_, keys, queries, steps);
        std::vector<std::int64_t> key{static_cast<std::int64_t>(reader)};
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

// Pairs of shards that are looked at, some nanoseconds each where the slots are known: all of 8192 shards.
constexpr std::int64_t most_pairs = std::int64_t{1} << 26;

} // namespace

bool gather_is_small(const Plan &plan, const std::vector<Window> &shards) {
    const int ranks = static_cast<int>(shards.size());
    const auto shard = [&](int rank) -> const Window & { return shards[static_cast<std::size_t>(rank)]; };
    std::int64_t longest = 0;
    for (const Window &window : shards)
        longest = std::max(longest, window.length);
    std::vector<std::int64_t> slots(shards.size()); // that a rank receives
    Steps steps(estimate_steps), pairs(most_pairs);
    for (const bool forwards : {true, false}) {
        if (!forwards && plan.causal())
            break;
        if (!steps.take(static_cast<std::int64_t>(shards.size() * plan.branches().size())))
            return false;
        const std::vector<std::size_t> class_of_shard = classify(plan, shards, forwards);
        // Slots of a message to a class of shards, as long as the same branches reach them.
        struct Known {
            int from = -1;
            std::size_t branches = 0;
            std::int64_t slots = 0;
        };
        std::vector<Known> known(shards.size());
        Outlines outlines(plan);
        std::vector<std::int64_t> reach;
        for (int from = 0; from < ranks; ++from) {
            const Window &keys = shard(from);
            if (keys.length == 0)
                continue;
            // How far on the segments reach that have the end of the shard, or how far back those with its start.
            reach.clear();
            for (const BranchPlan &branch : plan.branches()) {
                const Window range = branch.segment(branch.segment_of(forwards ? keys.end() - 1 : keys.start)).range;
                reach.push_back(forwards ? range.end() - keys.end() : keys.start - range.start);
            }
            std::sort(reach.begin(), reach.end());
            std::size_t short_ones = 0;
            for (int to = forwards ? from + 1 : from - 1; to >= 0 && to < ranks; to += forwards ? 1 : -1) {
                const Window &queries = shard(to);
                if (queries.length == 0)
                    continue;
                const std::int64_t apart = forwards ? queries.start - keys.end() : keys.start - queries.end();
                while (short_ones < reach.size() && reach[short_ones] <= apart)
                    ++short_ones;
                const std::size_t branches = reach.size() - short_ones;
                if (branches == 0)
                    break;
                if (!pairs.take(1))
                    return false;
                const std::size_t reader = class_of_shard[static_cast<std::size_t>(to)];
                Known &message = known[reader];
                if (message.from != from || message.branches != branches) {
                    const std::optional<std::int64_t> count = outlines.slots(keys, queries, reader, steps);
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
