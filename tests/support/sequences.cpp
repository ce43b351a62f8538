// SPDX-License-Identifier: Apache-2.0
#include "support/sequences.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace annulus::test {
namespace {

// The rows of a sequence in [outer, n, inner] values: `outers` entries from first_outer on, and `count` entries from
// start on.
struct RowRange {
    std::int64_t first_outer, outers, n, inner, start, count;

    template <class Visit> void for_each_run(Visit visit) const {
        for (std::int64_t i = 0; count > 0 && i < outers; ++i)
            visit(((first_outer + i) * n + start) * inner, i * count * inner, count * inner);
    }

    std::vector<double> of(const std::vector<double> &values) const {
        std::vector<double> part(values.empty() ? 0 : static_cast<std::size_t>(outers * count * inner));
        if (!values.empty())
            for_each_run([&](std::int64_t from, std::int64_t to, std::int64_t length) {
                std::copy_n(values.begin() + from, length, part.begin() + to);
            });
        return part;
    }

    void put(const std::vector<double> &part, std::vector<double> &values) const {
        if (!part.empty())
            for_each_run([&](std::int64_t to, std::int64_t from, std::int64_t length) {
                std::copy_n(part.begin() + from, length, values.begin() + to);
            });
    }
};

// A sequence's rows in the three kinds of tensors.
struct TensorRows {
    RowRange queries, keys, statistics;

    TensorRows(const Problem &whole, const SequenceRows &sequence) {
        const auto [first, batches, start, length] = sequence;
        const Problem own = sequence.cut(whole);
        const std::int64_t query = start + own.query_start() - whole.query_start(), count = own.query_length();
        queries = {first, batches, whole.query_length(), whole.heads * whole.dim, query, count};
        keys = {first, batches, whole.length, whole.kv() * whole.dim, start, length};
        statistics = {first * whole.heads, batches * whole.heads, whole.query_length(), 1, query, count};
    }
};

} // namespace

Problem SequenceRows::cut(const Problem &whole) const {
    Problem own = whole;
    own.sequences.reset();
    own.batch = batches;
    own.length = length;
    if (whole.window) {
        const std::int64_t first = std::max(whole.window->start, start);
        const std::int64_t end = std::min(whole.window->start + whole.window->length, start + length);
        own.window = QueryWindow{first - start, std::max(end - first, std::int64_t{0})};
    }
    return own;
}

Inputs SequenceRows::cut(const Problem &whole, const Inputs &inputs) const {
    const TensorRows rows(whole, *this);
    return {rows.queries.of(inputs.q), rows.keys.of(inputs.k), rows.keys.of(inputs.v), rows.queries.of(inputs.d_out),
            rows.statistics.of(inputs.d_lse)};
}

Results SequenceRows::cut(const Problem &whole, const Results &results) const {
    const TensorRows rows(whole, *this);
    return {rows.queries.of(results.out), rows.statistics.of(results.lse), rows.queries.of(results.d_q),
            rows.keys.of(results.d_k), rows.keys.of(results.d_v)};
}

void SequenceRows::paste(const Problem &whole, const Results &part, Results &results) const {
    const TensorRows rows(whole, *this);
    rows.queries.put(part.out, results.out);
    rows.statistics.put(part.lse, results.lse);
    rows.queries.put(part.d_q, results.d_q);
    rows.keys.put(part.d_k, results.d_k);
    rows.keys.put(part.d_v, results.d_v);
}

static std::vector<SequenceRows> all_sequences_of(const Problem &problem) {
    if (!problem.sequences)
        return {{0, problem.batch, 0, problem.length}};
    const auto &[starts, lengths] = *problem.sequences;
    std::vector<SequenceRows> all;
    if (starts.empty())
        for (std::int64_t b = 0; b < problem.batch; ++b)
            all.push_back({b, 1, 0, lengths[static_cast<std::size_t>(b)]});
    else
        for (std::size_t i = 0; i + 1 < starts.size(); ++i)
            all.push_back({0, problem.batch, starts[i], lengths.empty() ? starts[i + 1] - starts[i] : lengths[i]});
    return all;
}

std::vector<SequenceRows> sequences_of(const Problem &problem) {
    std::vector<SequenceRows> all = all_sequences_of(problem);
    std::erase_if(all, [&](const SequenceRows &sequence) { return sequence.cut(problem).query_length() == 0; });
    return all;
}

Results results_of_no_sequence(const Problem &problem) {
    const auto zeros = [](std::size_t count) { return std::vector<double>(count); };
    return {zeros(problem.q_size()), std::vector<double>(problem.lse_size(), -std::numeric_limits<double>::infinity()),
            zeros(problem.q_size()), zeros(problem.kv_size()), zeros(problem.kv_size())};
}

Inputs poisoned(const Problem &problem, const Inputs &inputs) {
    const auto nans = [](const std::vector<double> &values) {
        return std::vector<double>(values.size(), std::numeric_limits<double>::quiet_NaN());
    };
    Inputs poisoned = {nans(inputs.q), nans(inputs.k), nans(inputs.v), nans(inputs.d_out), nans(inputs.d_lse)};
    for (const SequenceRows &sequence : all_sequences_of(problem)) {
        const TensorRows rows(problem, sequence);
        rows.queries.put(rows.queries.of(inputs.q), poisoned.q);
        rows.keys.put(rows.keys.of(inputs.k), poisoned.k);
        rows.keys.put(rows.keys.of(inputs.v), poisoned.v);
        rows.queries.put(rows.queries.of(inputs.d_out), poisoned.d_out);
        rows.statistics.put(rows.statistics.of(inputs.d_lse), poisoned.d_lse);
    }
    return poisoned;
}

EachAlone::EachAlone(const Problem &problem, const Inputs &inputs)
    : problem_(problem), sequences_(sequences_of(problem)), exact_(results_of_no_sequence(problem)), low_(exact_) {
    for (const SequenceRows &rows : sequences_) {
        const Problem own = rows.cut(problem);
        const Inputs own_inputs = rows.cut(problem, inputs);
        rows.paste(problem, run_exact(own, own_inputs), exact_);
        rows.paste(problem, plain_if_half(own, own_inputs), low_);
    }
}

void EachAlone::expect(const Results &results) const {
    expect_agreement(problem_, results, exact_, low_);
    const Results nothing = results_of_no_sequence(problem_);
    Results outside = results;
    for (const SequenceRows &rows : sequences_)
        rows.paste(problem_, rows.cut(problem_, nothing), outside);
    expect_identical(outside, nothing);
}

Problem in_documents(Problem problem, const std::vector<std::int64_t> &lengths) {
    Sequences documents{{0}, {}};
    for (const std::int64_t length : lengths)
        documents.starts.push_back(documents.starts.back() + length);
    problem.length = documents.starts.back();
    problem.sequences = documents;
    return problem;
}

Problem in_random_sequences(Problem problem, std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    const auto number = [&](std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(engine);
    };
    Sequences sequences;
    if (number(0, 3) == 0) {
        for (std::int64_t b = 0; b < problem.batch; ++b)
            sequences.lengths.push_back(number(0, 3) == 0 ? 0 : number(0, problem.length));
    } else {
        for (std::int64_t count = number(2, 9); count > 0; --count)
            sequences.starts.push_back(number(0, problem.length));
        std::sort(sequences.starts.begin(), sequences.starts.end());
        if (number(0, 1))
            for (std::size_t i = 0; i + 1 < sequences.starts.size(); ++i)
                sequences.lengths.push_back(number(0, sequences.starts[i + 1] - sequences.starts[i]));
    }
    problem.sequences = sequences;
    std::int64_t divisor = 0;
    for (const SequenceRows &sequence : all_sequences_of(problem))
        divisor = std::gcd(divisor, sequence.length);
    for (BranchSpec &branch : problem.branches)
        if (branch.width && branch.segment == 0)
            branch.width = divisor;
    return problem;
}

} // namespace annulus::test
