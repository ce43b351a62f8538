// SPDX-License-Identifier: Apache-2.0
// The `cpu` engine's entry: float64 tensors accumulate in double, all others in float.
#include "engine/engine.hpp"
#include "cpu/blocked/passes.hpp"

#include <memory>

namespace annulus {

namespace {

template <class T> class BlockedCall final : public PreparedCall {
  public:
    BlockedCall(const Plan &plan, annulus_pass pass, CallPart part, int threads)
        : plan_(plan), pass_(pass), part_(part), threads_(threads),
          bytes_(pass == ANNULUS_PASS_FORWARD ? forward_bytes<T>(plan, threads)
                                              : backward_bytes<T>(plan, part, threads)) {}

    std::size_t workspace_bytes() const override { return bytes_; }

    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *) override {
        if (pass_ == ANNULUS_PASS_FORWARD)
            forward<T>(plan_, part_, tensors, partial, workspace, threads_);
        else
            backward<T>(plan_, part_, tensors, partial, workspace, threads_);
    }

    void finish(const CallTensors &tensors, const PartialResults &partial, void *) override {
        if (pass_ == ANNULUS_PASS_FORWARD)
            finish_forward<T>(plan_, tensors, partial, threads_);
        else
            finish_backward<T>(plan_, tensors, partial, threads_);
    }

  private:
    const Plan plan_;
    const annulus_pass pass_;
    const CallPart part_;
    const int threads_;
    const std::size_t bytes_;
};

Preparation prepare(const Plan &plan, annulus_pass pass, CallPart part, Device &, const Limits &limits) {
    if (plan.problem().dtype == ANNULUS_FLOAT64)
        return {std::make_unique<BlockedCall<double>>(plan, pass, part, limits.threads)};
    return {std::make_unique<BlockedCall<float>>(plan, pass, part, limits.threads)};
}

} // namespace

const Engine cpu_engine{ANNULUS_ENGINE_CPU, ANNULUS_DEVICE_CPU, true, prepare};

} // namespace annulus
