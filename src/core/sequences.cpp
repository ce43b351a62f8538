// SPDX-License-Identifier: Apache-2.0
#include "core/sequences.hpp"

#include <map>
#include <tuple>

namespace annulus {

namespace {

Window inside(const Window &window, const Window &rows) {
    const Window part = intersect(window, rows);
    return part.length == 0 ? Window{} : Window{part.start - rows.start, part.length};
}

} // namespace

Problem problem_of(const Problem &rows, const Sequence &sequence) {
    Problem problem = rows;
    problem.batch = sequence.batches;
    problem.sequence_length = sequence.rows.length;
    problem.queries = inside(rows.queries, sequence.rows);
    problem.keys = inside(rows.keys, sequence.rows);
    return problem;
}

SequencePlans::SequencePlans(const Pattern &pattern, const CallProblem &problem, OtherRows other_rows)
    : rows_(problem.rows), is_one_(problem.sequences.empty()), covers_rows_(true), other_rows_(other_rows) {
    if (is_one_) {
        plans_.emplace_back(pattern, rows_);
        items_.push_back({{0, rows_.batch, {0, rows_.sequence_length}}, 0});
        return;
    }
    const auto key = [](const Problem &p) {
        return std::tuple(p.batch, p.sequence_length, p.queries.start, p.queries.length, p.keys.start, p.keys.length);
    };
    std::map<decltype(key(rows_)), std::size_t> known;
    std::int64_t queries = 0, keys = 0;
    for (const Sequence &sequence : problem.sequences) {
        const Problem own = problem_of(rows_, sequence);
        if (own.queries.length == 0)
            continue;
        const auto [found, is_new] = known.try_emplace(key(own), plans_.size());
        if (is_new)
            plans_.emplace_back(pattern, own);
        items_.push_back({sequence, found->second});
        queries += own.batch * own.queries.length;
        keys += own.batch * own.keys.length;
    }
    covers_rows_ = queries == rows_.batch * rows_.queries.length && keys == rows_.batch * rows_.keys.length;
}

double SequencePlans::pairs(std::int32_t branch) const {
    std::vector<double> plan_pairs;
    plan_pairs.reserve(plans_.size());
    for (const Plan &plan : plans_)
        plan_pairs.push_back(plan.pairs(branch));
    double sum = 0;
    for (const Item &item : items_)
        sum += plan_pairs[item.plan];
    return sum;
}

std::uint64_t SequencePlans::bytes() const {
    std::uint64_t sum = sizeof *this + items_.capacity() * sizeof(Item);
    for (const Plan &plan : plans_)
        sum += plan.bytes();
    return sum;
}

} // namespace annulus
