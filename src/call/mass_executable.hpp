// SPDX-License-Identifier: Apache-2.0
// Attention mass as backward runs of an engine (engine/mass.hpp), on one rank or several.
#pragma once

#include "core/plan.hpp"
#include "engine/backend.hpp"
#include "engine/engine.hpp"
#include "engine/mass.hpp"

#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace annulus {

// Returns the gradients that backward computes for an attention mass: dV alone, in the dtype of sums.
GradientTargets mass_gradients(annulus_dtype dtype);

// Its workspace holds dO and dV, then the workspace of the backward executable.
class MassExecutable final : public Executable {
  public:
    // `backward` has the gradients of mass_gradients(). `problem` has the windows of the tensors.
    MassExecutable(const Backend &backend, const Problem &problem, const Limits &limits,
                   std::unique_ptr<Executable> backward);

    // Returns the bytes of workspace that dO and dV take, a multiple of Workspace::alignment.
    static std::size_t gradient_bytes(const Problem &problem);

    std::size_t workspace_bytes() const override;
    const char *tensor_refusal(const CallTensors &tensors) const override;
    std::int64_t row_alignment() const override { return backward_->row_alignment(); }
    void reserve(void *stream) override { backward_->reserve(stream); }
    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override;

  private:
    const Backend &backend_;
    const Problem problem_;
    const int threads_;
    const std::unique_ptr<Executable> backward_;
};

} // namespace annulus
