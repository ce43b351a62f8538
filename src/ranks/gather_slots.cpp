// SPDX-License-Identifier: Apache-2.0
#include "ranks/gather_slots.hpp"

#include "ranks/shared_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

namespace annulus {

namespace {

// Finds an upper bound of the slots that each shard receives.
class GatherBound {
  public:
    explicit GatherBound(const ShardLayout &layout) : plan_(layout.plan()), shards_(layout.shards().pieces) {}

    // Returns the bound of shard `to`.
    std::int64_t slots(std::size_t to) {
        return slots_from(true, shards_[to]) + (plan_.causal() ? 0 : slots_from(false, shards_[to]));
    }

  private:
    // A branch that gives a shard keys of other shards: its segment at the shard's border, and how far beyond the
    // border keys may be.
    struct Reach {
        const BranchPlan *branch;
        Segment segment;
        std::int64_t length;
    };

    // Finds the branches that reach beyond the border, in ascending order of their reach.
    void find_reaches_of_receiver(bool is_before, const Window &queries) {
        reaches_.clear();
        for (const BranchPlan &branch : plan_.branches()) {
            if (intersect(branch.query_range(), queries).length == 0)
                continue;
            const Segment segment = branch.segment_at(is_before ? queries.start : queries.end() - 1);
            const Window keys = intersect(segment.range, branch.key_range());
            const std::int64_t length = is_before ? std::min(queries.start - keys.start, branch.bounds().before)
                                                  : std::min(keys.end() - queries.end(), branch.bounds().after);
            if (length > 0)
                reaches_.push_back({&branch, segment, length});
        }
        std::ranges::sort(reaches_, {}, &Reach::length);
    }

    // Returns a divisor of the stride of every message whose rows come from the branches first, first + 1, … of
    // `reaches_`: of all distances between two rows of a key/value head.
    std::int64_t stride_of(std::size_t first) const {
        if (reaches_.size() - first > max_progressions)
            return 1;
        std::int64_t stride = 0;
        for (std::int32_t kv_head = 0; stride != 1 && kv_head < plan_.problem().kv_heads; ++kv_head) {
            const HeadGroup heads = heads_of(plan_, kv_head);
            std::int64_t row = -1; // of this head
            for (std::size_t i = first; stride != 1 && i < reaches_.size(); ++i) {
                const auto &[branch, segment, length] = reaches_[i];
                const ResidueRange used = branch->residues(heads.first, heads.last);
                if (used.count == 0)
                    continue;
                if (used.count > 1 || !segment.curve.is_linear())
                    return 1;
                const std::int64_t own = segment.range.start + used.first;
                stride = std::gcd(std::gcd(stride, branch->dilation()), row < 0 ? 0 : own - row);
                row = own;
            }
        }
        return std::max<std::int64_t>(1, stride);
    }

    // Returns the bound for the shards before a shard, or after it. Shards that the same branches reach lie side by
    // side. Each of them sends at most a slot for each stride of its keys, and one more.
    std::int64_t slots_from(bool is_before, const Window &queries) {
        find_reaches_of_receiver(is_before, queries);
        if (reaches_.empty())
            return 0;
        const auto reached = [&](std::int64_t length) {
            return Window{is_before ? queries.start - length : queries.end(), length};
        };
        const Window farthest = reached(reaches_.back().length);
        std::int64_t slots = 0;
        ShardRange nearer = shards_in(shards_, reached(0)); // what branches with a shorter reach have counted
        for (std::size_t i = 0; i < reaches_.size(); ++i) {
            const ShardRange all = shards_in(shards_, reached(reaches_[i].length));
            const ShardRange range =
                is_before ? ShardRange{all.first, nearer.first} : ShardRange{nearer.last, all.last};
            nearer = all;
            if (range.count() <= 0)
                continue;
            const std::int64_t start = shards_[static_cast<std::size_t>(range.first)].start;
            const Window keys{start, shards_[static_cast<std::size_t>(range.last - 1)].end() - start};
            slots += intersect(keys, farthest).length / stride_of(i) + range.count();
        }
        return slots;
    }

    const Plan &plan_;
    const std::vector<Window> &shards_;
    std::vector<Reach> reaches_;
};

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
            const Window part = intersect(intersect(segment.range, branch.query_range()), shard);
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

// Counts the slots of messages in one direction. The count is cached by the class of the receiver. It is cached by the
// sender's keys in each shared segment, too: their number, their first residue, and how far they are from its border.
class SlotCounter {
  public:
    explicit SlotCounter(const Plan &plan) : plan_(plan) {}

    // Returns the slots of all messages from `keys` to `queries`, or nothing if the steps run out.
    std::optional<std::int64_t> slots(const Window &keys, const Window &queries, std::size_t receiver_class,
                                      Steps &steps) {
        const std::vector<SharedBranch> branches = shared_branches(plan_, keys, queries, steps);
        std::vector<std::int64_t> key{static_cast<std::int64_t>(receiver_class)};
        for (const SharedBranch &shared : branches)
            key.insert(key.end(),
                       {shared.index, shared.keys.length,
                        (shared.keys.start - shared.segment.range.start) % shared.dilation(),
                        keys.start < queries.start ? keys.end() - shared.keys.end() : shared.keys.start - keys.start});
        const auto [known, is_new] = known_.try_emplace(std::move(key), 0);
        if (is_new) {
            const std::optional<std::vector<Band>> bands = make_bands(plan_, branches, keys, queries, steps);
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

// Counts the slots that each shard of a sequence receives, until one receives more than `limit`.
class GatherCount {
  public:
    GatherCount(const ShardLayout &layout, std::int64_t limit, GatherEffort &effort)
        : plan_(layout.plan()), shards_(layout.shards().pieces), limit_(limit), effort_(effort),
          slots_(shards_.size()) {}

    // Counts all messages. Returns false if a shard receives too much, or if the steps run out.
    bool add_messages() { return add_messages(true) && (plan_.causal() || add_messages(false)); }
    const std::vector<std::int64_t> &slots() const { return slots_; }

  private:
    // The slots from shard `from` to a receiver class, valid for receivers that the same number of branches reach.
    struct Known {
        int from = -1;
        std::size_t branches = 0;
        std::int64_t slots = 0;
    };

    // Counts the messages to later shards, or to earlier ones.
    bool add_messages(bool is_forward) {
        if (!effort_.steps.take(static_cast<std::int64_t>(shards_.size() * plan_.branches().size())))
            return false;
        classes_ = classify(plan_, shards_, is_forward);
        known_.assign(shards_.size(), {});
        SlotCounter slot_counter(plan_);
        for (int from = 0; from < static_cast<int>(shards_.size()); ++from)
            if (shard(from).length > 0 && !add_messages_of(from, is_forward, slot_counter))
                return false;
        return true;
    }

    const Window &shard(int index) const { return shards_[static_cast<std::size_t>(index)]; }

    // Finds how many positions the segments at the shard's border extend beyond it, as far as windows and global
    // positions allow, in ascending order; and the largest such number of a window.
    void find_reaches_of_sender(const Window &keys, bool is_forward) {
        reaches_.clear();
        window_reach_ = 0;
        for (const BranchPlan &branch : plan_.branches()) {
            const Window range = branch.segment(branch.segment_of(is_forward ? keys.end() - 1 : keys.start)).range;
            const Window queries = intersect(range, branch.query_range());
            const std::int64_t reach = is_forward ? std::min(queries.end() - keys.end(), branch.bounds().before)
                                                  : std::min(keys.start - queries.start, branch.bounds().after);
            reaches_.push_back(intersect(branch.key_range(), keys).length > 0 ? reach : 0);
            if (branch.kind() == ANNULUS_BRANCH_WINDOW)
                window_reach_ = std::max(window_reach_, reaches_.back());
        }
        std::sort(reaches_.begin(), reaches_.end());
    }

    bool add_messages_of(int from, bool is_forward, SlotCounter &slot_counter) {
        const Window &keys = shard(from);
        find_reaches_of_sender(keys, is_forward);
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
            if (!effort_.pairs.take(1))
                return false;
            const std::size_t receiver_class = classes_[static_cast<std::size_t>(to)];
            Known &message = known_[receiver_class];
            // The keys that a window reaches depend on how far apart the shards are.
            if (message.from != from || message.branches != branches || apart < window_reach_) {
                const std::optional<std::int64_t> slots =
                    slot_counter.slots(keys, queries, receiver_class, effort_.steps);
                if (!slots)
                    return false;
                message = {from, branches, *slots};
            }
            std::int64_t &sum = slots_[static_cast<std::size_t>(to)];
            sum += message.slots;
            if (sum > limit_)
                return false;
        }
        return true;
    }

    const Plan &plan_;
    const std::vector<Window> &shards_;
    const std::int64_t limit_;
    GatherEffort &effort_;
    std::vector<std::int64_t> slots_;  // that each shard receives
    std::vector<std::size_t> classes_; // of the receivers, in the direction that is counted
    std::vector<Known> known_;         // by receiver class
    std::vector<std::int64_t> reaches_;
    std::int64_t window_reach_ = 0;
};

} // namespace

std::optional<std::vector<std::int64_t>> bound_slots(const ShardLayout &layout, GatherEffort &effort) {
    constexpr std::int64_t looks_per_step = 8; // at a branch for a key/value head
    const std::size_t shards = layout.shards().pieces.size();
    const Plan &plan = layout.plan();
    if (!effort.steps.take(product(1 + plan.problem().kv_heads / looks_per_step,
                                   static_cast<std::int64_t>(2 * shards * plan.branches().size()))))
        return std::nullopt;
    GatherBound bound(layout);
    std::vector<std::int64_t> slots;
    for (std::size_t i = 0; i < shards; ++i)
        slots.push_back(layout.shards().pieces[i].length > 0 ? bound.slots(i) : 0);
    return slots;
}

std::optional<std::vector<std::int64_t>> count_slots(const ShardLayout &layout, std::int64_t limit,
                                                     GatherEffort &effort) {
    GatherCount count(layout, limit, effort);
    if (!count.add_messages())
        return std::nullopt;
    return count.slots();
}

} // namespace annulus
