// SPDX-License-Identifier: Apache-2.0
#include "support/ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

namespace annulus::test {
namespace {

// Returns the entries start … start + length - 1 of the middle dimension of [outer, n, inner].
std::vector<double> cut(const std::vector<double> &values, std::int64_t outer, std::int64_t n, std::int64_t inner,
                        std::int64_t start, std::int64_t length) {
    std::vector<double> part;
    if (values.empty())
        return part;
    for (std::int64_t i = 0; i < outer; ++i) {
        const auto begin = values.begin() + (i * n + start) * inner;
        part.insert(part.end(), begin, begin + length * inner);
    }
    return part;
}

// Does the inverse of cut().
void paste(const std::vector<double> &part, std::int64_t outer, std::int64_t n, std::int64_t inner, std::int64_t start,
           std::int64_t length, std::vector<double> &values) {
    if (part.empty())
        return;
    values.resize(static_cast<std::size_t>(outer * n * inner));
    for (std::int64_t i = 0; i < outer; ++i)
        std::copy_n(part.begin() + i * length * inner, length * inner, values.begin() + (i * n + start) * inner);
}

// Calls use(vector of `results`, outer, inner) for each tensor.
template <class Values, class Use> void for_each_tensor(const Problem &whole, Values &results, Use use) {
    const std::int64_t query_row = whole.heads * whole.dim, key_row = whole.kv() * whole.dim;
    use(results.out, whole.batch, query_row);
    use(results.lse, whole.batch * whole.heads, 1);
    use(results.d_q, whole.batch, query_row);
    use(results.d_k, whole.batch, key_row);
    use(results.d_v, whole.batch, key_row);
    use(results.mass, whole.batch * whole.heads, 1);
}

bool is_same(const annulus_estimate &a, const annulus_estimate &b) {
    return std::memcmp(&a, &b, offsetof(annulus_estimate, exchange) + sizeof a.exchange) == 0;
}

std::int64_t start_of(const RankOptions &options, int rank) {
    return std::accumulate(options.lengths.begin(), options.lengths.begin() + rank, std::int64_t{0});
}

} // namespace

annulus_status status_of(const annulus_comm *comm) {
    annulus_status status = ANNULUS_OK;
    check(annulus_comm_status(comm, &status));
    return status;
}

std::vector<Comm> make_local_comms(int ranks) {
    std::vector<annulus_comm *> handles(static_cast<std::size_t>(ranks));
    check(annulus_comm_create_local(handles.data(), ranks, nullptr));
    std::vector<Comm> comms;
    for (annulus_comm *handle : handles)
        comms.emplace_back(handle);
    return comms;
}

std::vector<std::int64_t> even_lengths(std::int64_t length, int ranks) {
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < ranks; ++i)
        lengths.push_back(length / ranks + (i < length % ranks));
    return lengths;
}

std::vector<std::int64_t> random_lengths(std::int64_t length, int ranks, std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    std::vector<std::int64_t> cuts = {0, length};
    for (int i = 1; i < ranks; ++i)
        cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, length)(engine));
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::int64_t> lengths;
    for (std::size_t i = 1; i < cuts.size(); ++i)
        lengths.push_back(cuts[i] - cuts[i - 1]);
    return lengths;
}

Problem shard_problem(const Problem &whole, std::int64_t length) {
    Problem shard = whole;
    shard.length = length;
    return shard;
}

Inputs shard_inputs(const Problem &whole, const Inputs &inputs, std::int64_t start, std::int64_t length) {
    const auto rows = [&](const std::vector<double> &values, std::int32_t heads) {
        return cut(values, whole.batch, whole.length, static_cast<std::int64_t>(heads) * whole.dim, start, length);
    };
    return {rows(inputs.q, whole.heads),
            rows(inputs.k, whole.kv()),
            rows(inputs.v, whole.kv()),
            rows(inputs.d_out, whole.heads),
            cut(inputs.d_lse, whole.batch * whole.heads, whole.length, 1, start, length),
            rows(inputs.d_q, whole.heads),
            rows(inputs.d_k, whole.kv()),
            rows(inputs.d_v, whole.kv())};
}

Context make_rank_context(const Problem &whole, const RankOptions &options, int rank, annulus_comm *comm) {
    Context context = make_context(make_config(whole, options.run).get(), options.run.threads, options.memory(rank));
    check(annulus_comm_set_timeout(comm, options.timeout));
    check(annulus_context_set_comm(context.get(), comm));
    const annulus_shards shards = options.shards();
    if (options.has_ranges() || options.set_lengths)
        check(annulus_context_set_shards(context.get(), &shards));
    return context;
}

Results run_rank(const Problem &global_problem, const Inputs &inputs, const RankOptions &options, int rank,
                 annulus_comm *comm) {
    Problem whole = global_problem;
    if (!options.gradients.empty())
        whole.gradients = options.gradients[static_cast<std::size_t>(rank)];
    const Context context = make_rank_context(whole, options, rank, comm);
    const std::int64_t start = start_of(options, rank), length = options.lengths[static_cast<std::size_t>(rank)];
    const annulus_call_options call_options = options_of(whole);
    const annulus_problem sizes = sizes_of(whole, &call_options);
    RunOptions run = options.run;
    run.memory = &options.memory(rank);
    // The library estimates for the lengths that were set, or for even lengths.
    const bool has_answers =
        options.has_ranges() || options.set_lengths || options.lengths == even_lengths(whole.length, options.ranks());
    run.own_workspace &= has_answers;
    const bool empty = length == 0;
    if (empty) // no engine serves a rank without rows
        run.engine = ANNULUS_ENGINE_AUTO;
    const Results results =
        run_on(context.get(), sizes, shard_problem(whole, length), shard_inputs(whole, inputs, start, length), run);
    annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    check(annulus_context_last_traffic(context.get(), &traffic));
    const annulus_pass last_pass = run.mass       ? ANNULUS_PASS_MASS
                                   : run.backward ? ANNULUS_PASS_BACKWARD
                                                  : ANNULUS_PASS_FORWARD;
    const annulus_shards shards = options.shards();
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, last_pass}) {
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        check(annulus_estimate_rank(context.get(), &sizes, pass, &shards, rank, &estimate));
        if (pass == last_pass &&
            (traffic.sent_bytes != estimate.sent_bytes || traffic.received_bytes != estimate.received_bytes))
            throw std::runtime_error("the traffic is not what was estimated");
        if (!has_answers)
            continue;
        annulus_estimate context_estimate = ANNULUS_ESTIMATE_INIT;
        std::uint64_t bytes = 0;
        check(annulus_estimate_problem(context.get(), &sizes, pass, ANNULUS_ALL_BRANCHES, &context_estimate));
        check(annulus_workspace_size(context.get(), &sizes, pass, &bytes));
        if (!is_same(context_estimate, estimate) || bytes != estimate.workspace_bytes)
            throw std::runtime_error("the context's estimate is not that of its rank");
    }
    return results;
}

void for_each_rank(int ranks, const std::function<void(int)> &work) {
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            try {
                work(rank);
            } catch (...) {
                failures[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    for (const std::exception_ptr &failure : failures)
        if (failure)
            std::rethrow_exception(failure);
}

Results run_ranks(const Problem &whole, const Inputs &inputs, const RankOptions &options,
                  const std::vector<Comm> &comms) {
    std::vector<Results> parts(comms.size());
    for_each_rank(options.ranks(), [&](int rank) {
        const auto i = static_cast<std::size_t>(rank);
        try {
            parts[i] = run_rank(whole, inputs, options, rank, comms[i].get());
        } catch (...) {
            annulus_comm_abort(comms[i].get()); // so that the other ranks do not wait
            throw;
        }
    });
    Results results;
    for (int rank = 0; rank < options.ranks(); ++rank) {
        Results &part = parts[static_cast<std::size_t>(rank)];
        const std::int64_t start = start_of(options, rank), length = options.lengths[static_cast<std::size_t>(rank)];
        std::vector<const std::vector<double> *> sources;
        for_each_tensor(whole, part, [&](const std::vector<double> &values, std::int64_t, std::int64_t) {
            sources.push_back(&values);
        });
        auto source = sources.begin();
        for_each_tensor(whole, results, [&](std::vector<double> &values, std::int64_t outer, std::int64_t inner) {
            paste(**source++, outer, whole.length, inner, start, length, values);
        });
    }
    return results;
}

annulus_shards view_of(const std::vector<std::int64_t> &lengths) {
    const auto count = static_cast<std::int32_t>(lengths.size());
    return {sizeof(annulus_shards), count, count, lengths.data(), nullptr};
}

annulus_shards Ranges::view(int count) const {
    return {sizeof(annulus_shards), count, static_cast<std::int32_t>(ranks.size()), lengths.data(), ranks.data()};
}

std::vector<std::int64_t> Ranges::rows(int count) const {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < ranks.size(); ++i)
        rows[static_cast<std::size_t>(ranks[i])] += lengths[i];
    return rows;
}

namespace {

// Reorders rows of an [outer, positions.size(), inner] array: to[i] = from[positions[i]], or the reverse if `back`.
void reorder(const std::vector<double> &from, std::vector<double> &to, std::int64_t outer, std::int64_t inner,
             const std::vector<std::int64_t> &positions, bool back) {
    to.resize(from.size());
    const auto rows = static_cast<std::int64_t>(positions.size());
    for (std::int64_t o = 0; o < outer && !from.empty(); ++o)
        for (std::int64_t i = 0; i < rows; ++i) {
            const std::int64_t there = positions[static_cast<std::size_t>(i)];
            std::copy_n(from.begin() + (o * rows + (back ? i : there)) * inner, inner,
                        to.begin() + (o * rows + (back ? there : i)) * inner);
        }
}

} // namespace

Ranges balanced_ranges(const Problem &problem, int ranks) {
    const Config config = make_config(problem, ANNULUS_ENGINE_AUTO);
    const Context context = make_context(config.get(), 1);
    const annulus_call_options options = options_of(problem);
    const annulus_problem sizes = sizes_of(problem, &options);
    Ranges ranges{std::vector<std::int64_t>(ANNULUS_MAX_SHARDS), std::vector<std::int32_t>(ANNULUS_MAX_SHARDS)};
    std::int32_t count = 0;
    check(annulus_balance_shards(context.get(), &sizes, ranks, ANNULUS_MAX_SHARDS, ranges.lengths.data(),
                                 ranges.ranks.data(), &count));
    ranges.lengths.resize(static_cast<std::size_t>(count));
    ranges.ranks.resize(static_cast<std::size_t>(count));
    return ranges;
}

Results run_ranges(const Problem &whole, const Inputs &inputs, RankOptions options, const Ranges &ranges,
                   const std::vector<Comm> &comms) {
    const int ranks = static_cast<int>(comms.size());
    std::vector<std::int64_t> positions; // rank by rank
    for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t start = 0;
        for (std::size_t i = 0; i < ranges.ranks.size(); start += ranges.lengths[i++])
            for (std::int64_t p = start; ranges.ranks[i] == rank && p < start + ranges.lengths[i]; ++p)
                positions.push_back(p);
    }
    options.ranges = ranges;
    options.lengths = ranges.rows(ranks);
    const std::int64_t query_row = whole.heads * whole.dim, key_row = whole.kv() * whole.dim;
    Inputs own;
    reorder(inputs.q, own.q, whole.batch, query_row, positions, false);
    reorder(inputs.k, own.k, whole.batch, key_row, positions, false);
    reorder(inputs.v, own.v, whole.batch, key_row, positions, false);
    reorder(inputs.d_out, own.d_out, whole.batch, query_row, positions, false);
    reorder(inputs.d_lse, own.d_lse, whole.batch * whole.heads, 1, positions, false);
    const Results found = run_ranks(whole, own, options, comms);
    Results results;
    reorder(found.out, results.out, whole.batch, query_row, positions, true);
    reorder(found.lse, results.lse, whole.batch * whole.heads, 1, positions, true);
    reorder(found.d_q, results.d_q, whole.batch, query_row, positions, true);
    reorder(found.d_k, results.d_k, whole.batch, key_row, positions, true);
    reorder(found.d_v, results.d_v, whole.batch, key_row, positions, true);
    reorder(found.mass, results.mass, whole.batch * whole.heads, 1, positions, true);
    return results;
}

Results run_ranks(const Problem &whole, const Inputs &inputs, const RankOptions &options) {
    return run_ranks(whole, inputs, options, make_local_comms(options.ranks()));
}

Results shard_results(const Problem &whole, const Results &results, std::int64_t start, std::int64_t length) {
    Results part = results;
    for_each_tensor(whole, part, [&](std::vector<double> &values, std::int64_t outer, std::int64_t inner) {
        values = cut(values, outer, whole.length, inner, start, length);
    });
    return part;
}

} // namespace annulus::test
