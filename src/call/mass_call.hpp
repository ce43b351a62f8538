// SPDX-License-Identifier: Apache-2.0
// An attention mass as backward calls of an engine (engine/mass.hpp), with the memory that these need beside the
// engine's.
#pragma once

#include "call/context.hpp"
#include "core/plan.hpp"
#include "engine/engine.hpp"
#include "engine/mass.hpp"

#include <annulus/attention.h>
#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>

namespace annulus {

// The engines' pass that a call's own is made of.
constexpr annulus_pass engine_pass(annulus_pass pass) {
    return pass == ANNULUS_PASS_MASS ? ANNULUS_PASS_BACKWARD : pass;
}

// How often a mass calls backward: the heads of a group that have a column share a round.
constexpr std::int64_t mass_rounds(std::int32_t heads_of_kv_head, std::int32_t head_dim) {
    return divide_up(heads_of_kv_head, head_dim);
}

// How backward writes gradients for a mass: dV alone, in the type of sums.
GradientTargets mass_gradients(annulus_dtype dtype);

// Bytes of a call's workspace that are not the engine's, a multiple of Workspace::alignment: of a mass dO and dV.
std::size_t own_bytes(annulus_pass pass, const Problem &problem);

class MassCall {
  public:
    // `tensors` has q, k and lse. While there is no `memory`, of own_bytes(), tensors() are good for questions alone.
    MassCall(const Problem &problem, const CallTensors &tensors, const annulus_tensor &mass, void *memory);

    // Those of the backward calls.
    const CallTensors &tensors() const { return tensors_; }

    std::int64_t rounds() const { return mass_rounds(work_.heads_of_kv_head, work_.head_dim); }
    template <class Backward> void run(const annulus_context &context, const Backward &backward) {
        for (std::int32_t round = 0; round < rounds(); ++round) {
            work_.first_member = round * work_.head_dim;
            mark_heads(context.kind, work_, context.thread_limit(), context.stream);
            backward();
            take_mass(context.kind, work_, context.thread_limit(), context.stream);
        }
    }

  private:
    CallTensors tensors_;
    MassWork work_;
};

} // namespace annulus
