// SPDX-License-Identifier: Apache-2.0
// The calls of a context, prepared once for each problem: a plan, and for each pass and engine that came into question
// what the engine prepared.
#pragma once

#include "core/sequences.hpp"
#include "engine/engine.hpp"
#include "engine/sequence_calls.hpp"
#include "ranks/rank_sequences.hpp"

#include <annulus/attention.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace annulus {

// A call of one rank alone; its face is RankSequences's.
class WholeCall {
  public:
    WholeCall(const SequencePlans &plans, annulus_pass pass, const Engine &engine, Device &device, const Limits &limits)
        : prepared_(prepare_sequences(engine, plans, pass, device, limits)) {}

    const char *refusal() const { return prepared_.refusal; }
    const char *tensor_refusal(const CallTensors &tensors) const { return prepared_.call->tensor_refusal(tensors); }
    std::int64_t row_alignment() const { return prepared_.call->row_alignment(); }
    std::size_t workspace_bytes() const { return prepared_.call->workspace_bytes(); }
    void run(const CallTensors &tensors, void *workspace, void *stream) {
        prepared_.call->run(tensors, {}, workspace, stream);
    }

  private:
    Preparation prepared_;
};

// What a call is prepared for and chosen by.
struct CallSetting {
    annulus_device kind;
    Device &device;
    annulus_engine engine;         // that is wanted, or auto
    Limits limits;                 // the engine's
    std::uint64_t announced_limit; // of the workspace, as the caller set it; 0: none
    std::size_t own_bytes;         // of the workspace that are not the engine's
};

// A call, and the engine that computes it.
template <class Call> struct ChosenCall {
    Call &call;
    const Engine &engine;
};

// A plan with the calls that were prepared for it. CallPlan is SequencePlans with WholeCall, or
// RankPlans with RankSequences.
template <class CallPlan, class Call> class PlannedCalls {
  public:
    template <class... Arguments>
    explicit PlannedCalls(Arguments &&...arguments) : plan_(std::forward<Arguments>(arguments)...) {}
    PlannedCalls(const PlannedCalls &) = delete; // calls refer to the plan
    PlannedCalls &operator=(const PlannedCalls &) = delete;

    const CallPlan &plan() const { return plan_; }
    // How many calls were prepared.
    int prepared() const { return prepared_; }

    // The call of the engine that is wanted, or for `auto` of the first of the device that supports plan and tensors,
    // on a GPU the first within the workspace limit where there is one. `tensors` may be null: what they will be like
    // is not known. Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the reason, Error(ANNULUS_ERROR_WORKSPACE) where the
    // call needs more than the limit.
    ChosenCall<Call> choose(annulus_pass pass, const CallTensors *tensors, const CallSetting &setting);

    // The engine that choose() would come to for tensors whose rows begin at multiples of `row_alignment` bytes and of
    // no more. Throws as choose().
    const Engine &select_engine(annulus_pass pass, std::int64_t row_alignment, const CallSetting &setting);

    // The bytes of workspace that are enough for all calls with tensors whose rows begin at multiples of
    // `row_alignment` bytes, whichever of the engines that are chosen for them computes. Throws as choose().
    std::size_t most_workspace(annulus_pass pass, std::int64_t row_alignment, const CallSetting &setting);

  private:
    // refuse(call) is why a call that supports the plan does not take the tensors, or null.
    template <class Refuse> ChosenCall<Call> find(annulus_pass pass, const CallSetting &setting, const Refuse &refuse);
    template <class Refuse>
    ChosenCall<Call> choose_within_limit(annulus_pass pass, const CallSetting &setting, const Refuse &refuse);
    Call &call(annulus_pass pass, std::size_t engine, const CallSetting &setting);

    const CallPlan plan_;
    std::array<std::array<std::unique_ptr<Call>, most_engines_of_device>, 2> calls_; // by pass and engine
    int prepared_ = 0;
};

extern template class PlannedCalls<SequencePlans, WholeCall>;
extern template class PlannedCalls<RankPlans, RankSequences>;

// The entries of the keys that were used last, as many as a model has problems or a few more.
template <class Key, class Entry> class RecentEntries {
  public:
    static constexpr std::size_t most = 16;

    // The entry of a key; where there is none, one of make(), a std::unique_ptr<Entry>.
    template <class Make> Entry &get(const Key &key, const Make &make) {
        auto found = std::find_if(items_.begin(), items_.end(), [&](const Item &item) { return item.key == key; });
        if (found == items_.end()) {
            Item item{key, make(), 0};
            if (items_.size() < most) {
                items_.push_back(std::move(item));
                found = items_.end() - 1;
            } else {
                found = std::min_element(items_.begin(), items_.end(),
                                         [](const Item &a, const Item &b) { return a.last_use < b.last_use; });
                *found = std::move(item);
            }
        }
        found->last_use = ++uses_;
        return *found->entry;
    }
    void clear() { items_.clear(); }

    // The sum of count(entry) over all of them.
    template <class Count> int sum(const Count &count) const {
        int sum = 0;
        for (const Item &item : items_)
            sum += count(*item.entry);
        return sum;
    }

  private:
    struct Item {
        Key key;
        std::unique_ptr<Entry> entry;
        std::uint64_t last_use;
    };
    std::vector<Item> items_;
    std::uint64_t uses_ = 0;
};

// By problem and limits; with ranks, whose problem has the rank's own windows, also by all shards.
using WholeCalls = PlannedCalls<SequencePlans, WholeCall>;
using RankCalls = PlannedCalls<RankPlans, RankSequences>;

struct PreparedCalls {
    RecentEntries<std::pair<CallProblem, Limits>, WholeCalls> whole;
    RecentEntries<std::tuple<CallProblem, Shards, Limits>, RankCalls> of_ranks;

    // How many are prepared.
    int count() const {
        const auto prepared = [](const auto &calls) { return calls.prepared(); };
        return whole.sum(prepared) + of_ranks.sum(prepared);
    }
    void clear() {
        whole.clear();
        of_ranks.clear();
    }
};

} // namespace annulus
