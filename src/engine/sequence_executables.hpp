// SPDX-License-Identifier: Apache-2.0
// Executables over several sequences, for every engine. The engine's own executable runs them if it has one, else one
// sequence runs after the other.
#pragma once

#include "core/sequences.hpp"
#include "engine/engine.hpp"

namespace annulus {

// Views of one sequence's rows in the tensors of a call.
class SequenceTensors {
  public:
    // `own` is problem_of(rows, sequence), or the problem of one shard of the sequence.
    SequenceTensors(const CallTensors &tensors, annulus_pass pass, const Problem &rows, const Sequence &sequence,
                    const Problem &own);
    SequenceTensors(const SequenceTensors &) = delete;
    SequenceTensors &operator=(const SequenceTensors &) = delete;
    const CallTensors &get() const { return tensors_; }

  private:
    CallTensors tensors_;
    annulus_tensor lse_, d_lse_; // tensors_.lse and tensors_.d_lse point to them
};

// Prepares an executable over all sequences of a call. Rows that belong to no sequence become rows that attend to
// nothing.
Preparation prepare_over_sequences(const Engine &engine, const SequencePlans &plans, annulus_pass pass, Device &device,
                                   const Limits &limits);

// The same, but always runs one sequence after the other.
Preparation prepare_one_by_one(const Engine &engine, const SequencePlans &plans, annulus_pass pass, Device &device,
                               const Limits &limits);

} // namespace annulus
