// SPDX-License-Identifier: Apache-2.0
// The entry of the engine `cpu`. float64 tensors accumulate in double, all others in float.
#include "cpu/blocked/engine.hpp"

#include "core/workspace.hpp"
#include "cpu/blocked/passes.hpp"
#include "cpu/clear_rows.hpp"
#include "cpu/parallel.hpp"
#include "engine/sequence_executables.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace annulus {

namespace {

// run() changes no member: several threads may run one call at the same time.
template <class T> class BlockedExecutable final : public Executable {
  public:
    BlockedExecutable(const Plan &plan, annulus_pass pass, KeyScope scope, int threads)
        : plan_(plan), pass_(pass), scope_(scope), threads_(threads),
          bytes_(pass == ANNULUS_PASS_FORWARD ? forward_bytes<T>(plan, threads)
                                              : backward_bytes<T>(plan, scope, threads)) {}

    std::size_t workspace_bytes() const override { return bytes_; }

    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *) override {
        if (pass_ == ANNULUS_PASS_FORWARD)
            forward<T>(plan_, scope_, tensors, partial, workspace, threads_);
        else
            backward<T>(plan_, scope_, tensors, partial, workspace, threads_);
    }

    void write_unfinished(const CallTensors &tensors, const PartialResults &partial, void *) override {
        if (pass_ == ANNULUS_PASS_FORWARD)
            finish_forward<T>(plan_, tensors, partial, threads_);
        else
            finish_backward<T>(plan_, tensors, partial, threads_);
    }

  private:
    const Plan plan_;
    const annulus_pass pass_;
    const KeyScope scope_;
    const int threads_;
    const std::size_t bytes_;
};

Preparation prepare(const Plan &plan, annulus_pass pass, KeyScope scope, Device &, const Limits &limits) {
    if (plan.problem().dtype == ANNULUS_FLOAT64)
        return {std::make_unique<BlockedExecutable<double>>(plan, pass, scope, limits.threads)};
    return {std::make_unique<BlockedExecutable<float>>(plan, pass, scope, limits.threads)};
}

// Runs long sequences one after the other, each with all threads. Runs the others at the same time, each with one
// thread, longest first: they are too short to keep many threads busy.
class SequencesSideBySide final : public Executable {
  public:
    SequencesSideBySide(const SequencePlans &plans, annulus_pass pass, Device &device, const Limits &limits)
        : plans_(plans), pass_(pass), device_(device), limits_(limits), executables_(plans.plans().size()) {
        std::vector<double> pairs;
        for (const Plan &plan : plans.plans())
            pairs.push_back(plan.pairs(ANNULUS_ALL_BRANCHES));
        order_.resize(plans.items().size());
        std::iota(order_.begin(), order_.end(), 0);
        const auto pairs_of = [&](std::size_t item) { return pairs[plans.items()[item].plan]; };
        std::ranges::stable_sort(order_, std::ranges::greater(), pairs_of);
        // The work that remains when a thread takes its last sequence is at most that sequence.
        double rest = plans.pairs(ANNULUS_ALL_BRANCHES);
        const auto is_long = [&](std::size_t item) { return pairs_of(item) * 8 * limits.threads > rest; };
        for (; long_count_ < order_.size() && is_long(order_[long_count_]); ++long_count_)
            rest -= pairs_of(order_[long_count_]);
        Limits one_thread = limits;
        one_thread.threads = 1;
        for (std::size_t i = 0; i < order_.size(); ++i) {
            const std::size_t plan = plans.items()[order_[i]].plan;
            std::size_t &bytes = i < long_count_ ? long_bytes_ : short_bytes_;
            if (!executables_[plan])
                executables_[plan] = prepare(plans.plans()[plan], pass, KeyScope::all_keys, device,
                                             i < long_count_ ? limits : one_thread)
                                         .executable;
            bytes = std::max(bytes, executables_[plan]->workspace_bytes());
        }
    }

    std::size_t workspace_bytes() const override {
        Workspace ledger;
        ledger.skip(short_bytes_, limits_.threads);
        return std::max(long_bytes_, ledger.used());
    }

    void run(const CallTensors &tensors, const PartialResults &, void *workspace, void *stream) override {
        if (plans_.clears_other_rows())
            clear_rows(plans_.rows(), pass_, tensors, device_, limits_, stream);
        for (std::size_t i = 0; i < long_count_; ++i)
            run(order_[i], tensors, workspace);
        const auto short_count = static_cast<std::int64_t>(order_.size() - long_count_);
        parallel_for(limits_.threads, short_count, [&](std::int64_t i, int worker) {
            std::byte *const all = static_cast<std::byte *>(workspace);
            run(order_[long_count_ + static_cast<std::size_t>(i)], tensors,
                all + static_cast<std::size_t>(worker) * short_bytes_);
        });
    }

  private:
    void run(std::size_t index, const CallTensors &tensors, void *workspace) {
        const SequencePlans::Item &item = plans_.items()[index];
        const SequenceTensors own(tensors, pass_, plans_.rows(), item.sequence, plans_.plan_of(item).problem());
        executables_[item.plan]->run(own.get(), {}, workspace, nullptr);
    }

    const SequencePlans plans_;
    const annulus_pass pass_;
    Device &device_;
    const Limits limits_;
    std::vector<std::unique_ptr<Executable>> executables_; // by plan
    std::vector<std::size_t> order_;                       // indices of the items, longest first
    std::size_t long_count_ = 0;                           // number of long items in order_
    std::size_t long_bytes_ = 0, short_bytes_ = 0;         // workspace of one sequence
};

ShardSums summed_rows(const Plan &shard, annulus_pass pass, Device &, const Limits &) {
    if (pass != ANNULUS_PASS_FORWARD)
        return {};
    return {SummedRows(shard), {}};
}

Preparation prepare_side_by_side(const SequencePlans &plans, annulus_pass pass, Device &device, const Limits &limits) {
    return {std::make_unique<SequencesSideBySide>(plans, pass, device, limits)};
}

} // namespace

const Engine cpu_engine{
    .id = ANNULUS_ENGINE_CPU,
    .device = ANNULUS_DEVICE_CPU,
    .has_key_scopes = true,
    .prepare = prepare,
    .clear = clear_rows,
    .prepare_sequences = prepare_side_by_side,
    .summed_rows = summed_rows,
    .sums_in_place = true,
};

} // namespace annulus
