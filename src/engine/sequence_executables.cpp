// SPDX-License-Identifier: Apache-2.0
#include "engine/sequence_executables.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace annulus {

namespace {

void move(annulus_tensor &tensor, std::int64_t elements) {
    tensor.data = static_cast<std::byte *>(tensor.data) + elements * dtype_bytes(tensor.dtype);
}

// Makes `tensor` a view of the rows `own` of a sequence. It is a [B, N, heads, D] tensor whose row 0 is row `start` of
// the call.
void take_rows(annulus_tensor &tensor, std::int64_t start, const Sequence &sequence, const Window &own) {
    const std::int64_t row = sequence.rows.start + own.start - start;
    move(tensor, sequence.first_batch * tensor.stride[0] + row * tensor.stride[1]);
    tensor.shape[0] = sequence.batches;
    tensor.shape[1] = own.length;
}

// The same for a [B, H, N] tensor, which may be null: points `tensor` to `view`.
void take_statistic(const annulus_tensor *&tensor, annulus_tensor &view, std::int64_t start, const Sequence &sequence,
                    const Window &own) {
    if (!tensor)
        return;
    view = *tensor;
    const std::int64_t row = sequence.rows.start + own.start - start;
    move(view, sequence.first_batch * view.stride[0] + row * view.stride[2]);
    view.shape[0] = sequence.batches;
    view.shape[2] = own.length;
    tensor = &view;
}

class OneByOne final : public Executable {
  public:
    OneByOne(const Engine &engine, const SequencePlans &plans, annulus_pass pass, Device &device, const Limits &limits,
             std::vector<std::unique_ptr<Executable>> executables)
        : engine_(engine), plans_(plans), pass_(pass), device_(device), limits_(limits),
          executables_(std::move(executables)) {}

    std::size_t workspace_bytes() const override {
        std::size_t most = 0;
        for (const std::unique_ptr<Executable> &executable : executables_)
            most = std::max(most, executable->workspace_bytes());
        return most;
    }

    std::int64_t row_alignment() const override {
        std::int64_t most = 1;
        for (const std::unique_ptr<Executable> &executable : executables_)
            most = std::max(most, executable->row_alignment());
        return most;
    }

    const char *tensor_refusal(const CallTensors &tensors) const override {
        for (const SequencePlans::Item &item : plans_.items())
            if (const char *const refusal = executables_[item.plan]->tensor_refusal(view(tensors, item).get()))
                return refusal;
        return nullptr;
    }

    void run(const CallTensors &tensors, const PartialResults &, void *workspace, void *stream) override {
        if (plans_.clears_other_rows())
            engine_.clear(plans_.rows(), pass_, tensors, device_, limits_, stream);
        for (const SequencePlans::Item &item : plans_.items())
            executables_[item.plan]->run(view(tensors, item).get(), {}, workspace, stream);
    }

  private:
    SequenceTensors view(const CallTensors &tensors, const SequencePlans::Item &item) const {
        return {tensors, pass_, plans_.rows(), item.sequence, plans_.plan_of(item).problem()};
    }

    const Engine &engine_;
    const SequencePlans plans_;
    const annulus_pass pass_;
    Device &device_;
    const Limits limits_;
    const std::vector<std::unique_ptr<Executable>> executables_; // one for each plan
};

} // namespace

SequenceTensors::SequenceTensors(const CallTensors &tensors, annulus_pass pass, const Problem &rows,
                                 const Sequence &sequence, const Problem &own)
    : tensors_(tensors) {
    CallTensors &t = tensors_;
    const auto take_queries = [&](annulus_tensor &tensor) {
        take_rows(tensor, rows.queries.start, sequence, own.queries);
    };
    const auto take_keys = [&](annulus_tensor &tensor) { take_rows(tensor, rows.keys.start, sequence, own.keys); };
    take_queries(t.q);
    take_keys(t.k);
    take_keys(t.v);
    take_queries(t.out);
    take_statistic(t.lse, lse_, rows.queries.start, sequence, own.queries);
    if (pass == ANNULUS_PASS_FORWARD)
        return;
    take_queries(t.d_out);
    take_statistic(t.d_lse, d_lse_, rows.queries.start, sequence, own.queries);
    take_queries(t.d_q);
    take_keys(t.d_k);
    take_keys(t.d_v);
}

Preparation prepare_one_by_one(const Engine &engine, const SequencePlans &plans, annulus_pass pass, Device &device,
                               const Limits &limits) {
    std::vector<std::unique_ptr<Executable>> executables;
    for (const Plan &plan : plans.plans()) {
        Preparation prepared = engine.prepare(plan, pass, KeyScope::all_keys, device, limits);
        if (prepared.refusal)
            return prepared;
        executables.push_back(std::move(prepared.executable));
    }
    return {std::make_unique<OneByOne>(engine, plans, pass, device, limits, std::move(executables))};
}

Preparation prepare_over_sequences(const Engine &engine, const SequencePlans &plans, annulus_pass pass, Device &device,
                                   const Limits &limits) {
    if (plans.is_one())
        return engine.prepare(plans.plans().front(), pass, KeyScope::all_keys, device, limits);
    return engine.prepare_sequences ? engine.prepare_sequences(plans, pass, device, limits)
                                    : prepare_one_by_one(engine, plans, pass, device, limits);
}

} // namespace annulus
