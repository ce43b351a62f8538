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

SequencePlans::SequencePlans(const Pattern &pattern, const CallProblem &problem)
    : rows_(problem.rows), is_one_(problem.sequences.empty()), covers_rows_(true) {
    if (is_one_) {
        plans_.emplace_back(pattern, rows_);
        items_.push_back({{0, rows_.batch, {0, rows_.sequence_length}}, 0});
        return;
    }
    const auto key = [](const Problem &p) {
        return std::tuple(p.batch, p.sequence_length, p.queries.start, p.queries.length, p.keys.start, p.keys.length);
    };
    std::map<decltype(key(rows_)), std::size_t> known, known_without_keys;
    std::int64_t queries = 0, keys = 0;
    for (const Sequence &sequence : problem.sequences) {
        const Problem own = problem_of(rows_, sequence);
        if (own.queries.length == 0)
            continue;
        if (own.keys.length == 0) {
            const auto [found, is_new] = known_without_keys.try_emplace(key(own), without_keys_.size());
            if (is_new)
                without_keys_.push_back({Plan(pattern, own), 0});
            ++without_keys_[found->second].sequences;
            continue;
        }
        const auto [found, is_new] = known.try_emplace(key(own), plans_.size());
        if (is_new)
            plans_.emplace_back(pattern, own);
        items_.push_back({sequence, found->second});
        queries += own.batch * own.queries.length;
        keys += own.batch * own.keys.length;
    }
    covers_rows_ = queries == rows_.batch * rows_.queries.length && keys == rows_.batch * rows_.keys.length;
}

template <class Value> double SequencePlans::sum(Value value) const {
    std::vector<double> of_plans;
    of_plans.reserve(plans_.size());
    for (const Plan &plan : plans_)
        of_plans.push_back(value(plan));
    double sum = 0;
    for (const Item &item : items_)
        sum += of_plans[item.plan];
    for (const Counted &counted : without_keys_)
        sum += counted.sequences * value(counted.plan);
    return sum;
}

double SequencePlans::pairs(std::int32_t branch) const {
    return sum([&](const Plan &plan) { return plan.pairs(branch); });
}

double SequencePlans::remote_bytes(std::int32_t branch) const {
    return sum([&](const Plan &plan) { return plan.remote_bytes(branch); });
}

std::uint64_t SequencePlans::bytes() const {
    std::uint64_t sum = sizeof *this + items_.capacity() * sizeof(Item);
    for (const Plan &plan : plans_)
        sum += plan.bytes();
    for (const Counted &counted : without_keys_)
        sum += counted.plan.bytes();
    return sum;
}

} // namespace annulus
