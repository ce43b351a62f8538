// SPDX-License-Identifier: Apache-2.0
// The sequences of a call cut out of its tensors, each a problem of its own.
#pragma once

#include "support/run.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

// The rows start … start + length - 1 of so many batch entries.
struct SequenceRows {
    std::int64_t first_batch = 0, batches = 0, start = 0, length = 0;

    // Its part of a problem, with the query rows that the window leaves it; of the problem's inputs and results.
    Problem cut(const Problem &whole) const;
    Inputs cut(const Problem &whole, const Inputs &inputs) const;
    Results cut(const Problem &whole, const Results &results) const;
    // Puts the results of the part into those of the whole.
    void paste(const Problem &whole, const Results &part, Results &results) const;
};

// Those that have query rows. Without sequences all rows are one.
std::vector<SequenceRows> sequences_of(const Problem &problem);

// Results where no row belongs to a sequence: O = 0, LSE = -infinity, gradients 0.
Results results_of_no_sequence(const Problem &problem);

// The values with NaN in the rows of no sequence.
Inputs poisoned(const Problem &problem, const Inputs &inputs);

// Each sequence computed alone by run_exact(), and put together.
class EachAlone {
  public:
    EachAlone(const Problem &problem, const Inputs &inputs);
    // Fails the running test unless `results` agree, as expect_agreement() has it, and are those of rows that attend to
    // nothing, to the bit, where no sequence is.
    void expect(const Results &results) const;

  private:
    const Problem problem_;
    const std::vector<SequenceRows> sequences_;
    Results exact_, low_;
};

// The same problem in random sequences, packed or padded; given grid widths still fit.
Problem in_random_sequences(Problem problem, std::uint64_t seed);

} // namespace annulus::test
