// SPDX-License-Identifier: Apache-2.0
// Several sequences in the rows of one call. Each is a problem of its own, with the positions 0, 1, 2, … and a plan in
// closed form; sequences of the same length share one.
#pragma once

#include "core/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus {

// A sequence has these rows of some batch entries, in each of them.
struct Sequence {
    std::int64_t first_batch = 0, batches = 0;
    Window rows;
    bool operator==(const Sequence &) const = default;
};

// What a call is about. The sequences overlap nowhere; without any all rows of a batch entry are one.
struct CallProblem {
    Problem rows; // its positions are rows
    std::vector<Sequence> sequences;
    bool operator==(const CallProblem &) const = default;
};

// The problem of one sequence among the rows of a call.
Problem problem_of(const Problem &rows, const Sequence &sequence);

class SequencePlans {
  public:
    // A sequence, and which of plans() is its own.
    struct Item {
        Sequence sequence;
        std::size_t plan;
    };

    // Throws Error(ANNULUS_ERROR_ARGUMENT) where the pattern does not fit a sequence.
    SequencePlans(const Pattern &pattern, const CallProblem &problem);

    const Problem &rows() const { return rows_; }
    const std::vector<Plan> &plans() const { return plans_; }
    // Those that have both queries and keys in the windows.
    const std::vector<Item> &items() const { return items_; }
    const Plan &plan_of(const Item &item) const { return plans_[item.plan]; }
    // All rows are one sequence.
    bool is_one() const { return is_one_; }
    // Each row in the windows belongs to one of items().
    bool covers_rows() const { return covers_rows_; }

    // The pairs of all sequences together, as Plan::pairs().
    double pairs(std::int32_t branch) const;
    std::uint64_t bytes() const;

  private:
    Problem rows_;
    std::vector<Plan> plans_;
    std::vector<Item> items_;
    bool is_one_, covers_rows_;
};

} // namespace annulus
