// SPDX-License-Identifier: Apache-2.0
// The executables of a context. Each problem is planned once, and each pass of it is prepared once for each engine that
// may run it.
#pragma once

#include "core/sequences.hpp"
#include "engine/backend.hpp"
#include "engine/engine.hpp"
#include "ranks/distributed_executable.hpp"
#include "ranks/rank_plan.hpp"

#include <annulus/attention.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace annulus {

// What executables are prepared for and selected by.
struct ExecutionSetting {
    const Backend &backend;
    Device &device;
    annulus_engine engine;         // the config's engine, or auto
    Limits limits;                 // the engine's
    std::uint64_t announced_limit; // of the workspace in bytes, as the caller set it; 0: none
    RankLinks links = {};          // null on one rank
};

struct Selection {
    Executable &executable;
    const Engine &engine;
};

// The executables of one plan, by pass and engine. Each is prepared when it is first asked for. The selection among
// them is repeated in each call, since its tensors may differ.
class Executables {
  public:
    using Prepare = std::function<Preparation(annulus_pass pass, const Engine &engine, const ExecutionSetting &)>;

    explicit Executables(Prepare prepare) : prepare_(std::move(prepare)) {}

    // Returns how many have been prepared.
    int count() const { return count_; }

    // Selects the executable of the config's engine. For `auto` it is the first engine of the device that supports the
    // plan and the tensors; on a GPU the first of them within the workspace limit, if one is. `tensors` may be null if
    // they are not known. Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the reason, or Error(ANNULUS_ERROR_WORKSPACE) if
    // the executable needs more than the limit.
    Selection select(annulus_pass pass, const CallTensors *tensors, const ExecutionSetting &setting);

    // Returns the engine that select() comes to for tensors whose rows begin at multiples of `row_alignment` bytes, and
    // not all at multiples of more. Throws as select().
    const Engine &select_engine(annulus_pass pass, std::int64_t row_alignment, const ExecutionSetting &setting);

    // Returns the most bytes of workspace of the engines that select() may come to. The rows of the tensors begin at
    // multiples of `row_alignment` bytes. Throws as select().
    std::size_t most_workspace(annulus_pass pass, std::int64_t row_alignment, const ExecutionSetting &setting);

  private:
    // refuse(executable) returns why an executable does not take the tensors, or null.
    template <class Refuse> Selection find(annulus_pass pass, const ExecutionSetting &setting, const Refuse &refuse);
    template <class Refuse>
    Selection select_within_limit(annulus_pass pass, const ExecutionSetting &setting, const Refuse &refuse);
    const Preparation &prepared(annulus_pass pass, std::size_t engine, const ExecutionSetting &setting);

    const Prepare prepare_;
    std::array<std::array<Preparation, most_engines_of_device>, 3> prepared_; // by pass and engine
    int count_ = 0;
};

// Prepares a pass of a plan, which outlives the executable.
Preparation prepare_pass(const SequencePlans &plans, annulus_pass pass, const Engine &engine,
                         const ExecutionSetting &setting);
Preparation prepare_pass(const RankPlan &plans, annulus_pass pass, const Engine &engine,
                         const ExecutionSetting &setting);

// A plan with its executables.
template <class Plans> struct Planned {
    const Plans plans;
    Executables executables;

    template <class... Arguments>
    explicit Planned(Arguments &&...arguments)
        : plans(std::forward<Arguments>(arguments)...),
          executables([this](annulus_pass pass, const Engine &engine, const ExecutionSetting &setting) {
              return prepare_pass(plans, pass, engine, setting);
          }) {}
    Planned(const Planned &) = delete; // the executables refer to the plans
    Planned &operator=(const Planned &) = delete;
};
using LocalPlanned = Planned<SequencePlans>;
using RankPlanned = Planned<RankPlan>;

// Keeps the entries of the keys that were used last. A model has fewer problems than `most`.
template <class Key, class Entry> class RecentEntries {
  public:
    static constexpr std::size_t most = 16;

    // Returns the entry of a key. If there is none, make() makes it, a std::unique_ptr<Entry>.
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

    // Returns the sum of count(entry) over the entries.
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

struct ExecutableCache {
    RecentEntries<std::pair<CallProblem, Limits>, LocalPlanned> local;
    // The problem has the windows of the rank's own rows.
    RecentEntries<std::tuple<CallProblem, Shards, Limits>, RankPlanned> distributed;

    // Returns how many executables have been prepared.
    int count() const {
        const auto count = [](const auto &planned) { return planned.executables.count(); };
        return local.sum(count) + distributed.sum(count);
    }
    void clear() {
        local.clear();
        distributed.clear();
    }
};

} // namespace annulus
