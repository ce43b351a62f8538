// SPDX-License-Identifier: Apache-2.0
// Several sequences in the rows of one call. Each sequence is a problem of its own, with positions 0, 1, 2, … and a
// closed-form plan. Sequences of the same batch size, length and windows share a plan.
#pragma once

#include "core/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus {

// A sequence consists of these rows, in each of some batch entries.
struct Sequence {
    std::int64_t first_batch = 0, batches = 0;
    Window rows;
    bool operator==(const Sequence &) const = default;
};

// The rows of a call and its sequences, which do not overlap. Without sequences, all rows of a batch entry are one.
struct CallProblem {
    Problem rows; // its positions are rows
    std::vector<Sequence> sequences;
    bool operator==(const CallProblem &) const = default;
};

// Returns the problem of one sequence among the rows of a call.
Problem problem_of(const Problem &rows, const Sequence &sequence);

// What a call does with rows that are in none of its sequences: it writes zeros to them (LSE -infinity), or leaves them
// to other calls.
enum class OtherRows { clear, leave };

class SequencePlans {
  public:
    // A sequence, and the index of its plan in plans().
    struct Item {
        Sequence sequence;
        std::size_t plan;
    };

    // Throws Error(ANNULUS_ERROR_ARGUMENT) if the pattern does not fit a sequence.
    SequencePlans(const Pattern &pattern, const CallProblem &problem, OtherRows other_rows = OtherRows::clear);

    const Problem &rows() const { return rows_; }
    const std::vector<Plan> &plans() const { return plans_; }
    // The sequences that have queries in the window of queries.
    const std::vector<Item> &items() const { return items_; }
    const Plan &plan_of(const Item &item) const { return plans_[item.plan]; }
    // True if all rows are one sequence.
    bool is_one() const { return is_one_; }
    // True if each row in the windows belongs to one of items().
    bool covers_rows() const { return covers_rows_; }
    // True if the call writes each row in the windows that does not belong to one of items().
    bool clears_other_rows() const { return !covers_rows_ && other_rows_ == OtherRows::clear; }

    // Returns the (query, key) pairs of all sequences together, as Plan::pairs() does of one.
    double pairs(std::int32_t branch) const;
    std::uint64_t bytes() const;

  private:
    Problem rows_;
    std::vector<Plan> plans_;
    std::vector<Item> items_;
    bool is_one_, covers_rows_;
    OtherRows other_rows_;
};

} // namespace annulus
