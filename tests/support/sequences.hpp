// SPDX-License-Identifier: Apache-2.0
// Cuts the sequences of a call out of its tensors. Each sequence is a problem of its own.
#pragma once

#include "support/run.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

// The rows start … start + length - 1 of `batches` batch entries from first_batch on.
struct SequenceRows {
    std::int64_t first_batch = 0, batches = 0, start = 0, length = 0;

    // Return the part of a problem, with the query rows inside the window, and the part of its inputs and results.
    Problem cut(const Problem &whole) const;
    Inputs cut(const Problem &whole, const Inputs &inputs) const;
    Results cut(const Problem &whole, const Results &results) const;
    // Writes the results of the part into those of the whole.
    void paste(const Problem &whole, const Results &part, Results &results) const;
};

// Returns the sequences that have query rows. Without sequences, all rows are one sequence.
std::vector<SequenceRows> sequences_of(const Problem &problem);

// Returns results for rows of no sequence: O = 0, LSE = -infinity, gradients 0.
Results results_of_no_sequence(const Problem &problem);

// Returns the values with NaN in the rows of no sequence.
Inputs poisoned(const Problem &problem, const Inputs &inputs);

// Computes each sequence alone by run_exact() and puts the results together.
class EachAlone {
  public:
    EachAlone(const Problem &problem, const Inputs &inputs);
    // Fails the running test unless `results` agree, as in expect_agreement(). Rows of no sequence must have, to the
    // bit, the results of rows that attend to nothing.
    void expect(const Results &results) const;

  private:
    const Problem problem_;
    const std::vector<SequenceRows> sequences_;
    Results exact_, low_;
};

// Returns the same problem in packed documents of these lengths, one behind the other.
Problem in_documents(Problem problem, const std::vector<std::int64_t> &lengths);

// Returns the same problem in random sequences, packed or padded. Grid widths still fit.
Problem in_random_sequences(Problem problem, std::uint64_t seed);

} // namespace annulus::test
