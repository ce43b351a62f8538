// SPDX-License-Identifier: Apache-2.0
// Calls over several sequences, for every engine: one sequence after the other, or as the engine knows better.
#pragma once

#include "core/sequences.hpp"
#include "engine/engine.hpp"

namespace annulus {

// The tensors of one sequence among those of a call: views of its rows.
class SequenceTensors {
  public:
    // `own` is problem_of() the two.
    SequenceTensors(const CallTensors &tensors, annulus_pass pass, const Problem &rows, const Sequence &sequence,
                    const Problem &own);
    SequenceTensors(const SequenceTensors &) = delete;
    SequenceTensors &operator=(const SequenceTensors &) = delete;
    const CallTensors &get() const { return tensors_; }

  private:
    CallTensors tensors_;
    annulus_tensor lse_, d_lse_; // to which the tensors point
};

// A whole call. Rows of no sequence are written as rows that attend to nothing.
Preparation prepare_sequences(const Engine &engine, const SequencePlans &plans, annulus_pass pass, Device &device,
                              const Limits &limits);

// The same, always one sequence after the other.
Preparation prepare_one_by_one(const Engine &engine, const SequencePlans &plans, annulus_pass pass, Device &device,
                               const Limits &limits);

} // namespace annulus
