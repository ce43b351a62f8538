// SPDX-License-Identifier: Apache-2.0
// A problem computed by several ranks, each with its shard or ranges, and put together again.
#pragma once

#include "support/run.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace annulus::test {

// The library's struct for shards of these lengths, one a rank. It points to the lengths.
annulus_shards view_of(const std::vector<std::int64_t> &lengths);

// The sequence as ranges one behind the other, each of a rank.
struct Ranges {
    std::vector<std::int64_t> lengths;
    std::vector<std::int32_t> ranks;

    // The library's struct for this number of ranks, which points to these arrays.
    annulus_shards view(int ranks) const;
    // How many rows each of so many ranks has.
    std::vector<std::int64_t> rows(int ranks) const;
};

struct RankOptions {
    std::vector<std::int64_t> lengths; // of the shards; one rank each
    // Says to the contexts that these are the ranks' rows, of the lengths above, in whose order inputs and results are.
    Ranges ranges = {};
    bool set_lengths = false; // says them to the contexts; else the ranks find them
    double timeout = 60;      // seconds
    RunOptions run = {};
    std::vector<Memory *> memories = {}; // of the ranks; empty: all in run.memory
    // How the ranks' gradients are written; empty: as the problem says.
    std::vector<std::array<GradientSpec, 3>> gradients = {};

    int ranks() const { return static_cast<int>(lengths.size()); }
    bool has_ranges() const { return !ranges.ranks.empty(); }
    annulus_shards shards() const { return has_ranges() ? ranges.view(ranks()) : view_of(lengths); }
    Memory &memory(int rank) const {
        return memories.empty() ? *run.memory : *memories[static_cast<std::size_t>(rank)];
    }
};

struct CommDeleter {
    void operator()(annulus_comm *comm) const { annulus_comm_destroy(comm); }
};
using Comm = std::unique_ptr<annulus_comm, CommDeleter>;

std::vector<Comm> make_local_comms(int ranks);
// What annulus_comm_status() tells. Throws where the call fails.
annulus_status status_of(const annulus_comm *comm);

// `length` split into `ranks` shards that differ by at most one row, or by chance, empty ones included.
std::vector<std::int64_t> even_lengths(std::int64_t length, int ranks);
std::vector<std::int64_t> random_lengths(std::int64_t length, int ranks, std::uint64_t seed);

// The problem of a shard's tensors, and their values. The whole has no query window.
Problem shard_problem(const Problem &whole, std::int64_t length);
Inputs shard_inputs(const Problem &whole, const Inputs &inputs, std::int64_t start, std::int64_t length);

// A context of the rank, ready for calls.
Context make_rank_context(const Problem &whole, const RankOptions &options, int rank, annulus_comm *comm);

// One rank's part; `inputs` are those of the whole. Checks that the call sent and received what the library says it
// would, and throws with the library's message where a call fails.
Results run_rank(const Problem &whole, const Inputs &inputs, const RankOptions &options, int rank, annulus_comm *comm);

// All ranks, as threads. Throws what the first rank that failed threw.
Results run_ranks(const Problem &whole, const Inputs &inputs, const RankOptions &options);
Results run_ranks(const Problem &whole, const Inputs &inputs, const RankOptions &options,
                  const std::vector<Comm> &comms);

// All ranks with ranges of the sequence. Inputs and results are in the order of the positions.
Results run_ranges(const Problem &whole, const Inputs &inputs, RankOptions options, const Ranges &ranges,
                   const std::vector<Comm> &comms);

// The part of a result that is a shard's.
Results shard_results(const Problem &whole, const Results &results, std::int64_t start, std::int64_t length);

// Calls work(rank) on a thread for each rank and waits for all; rethrows the first exception by rank.
void for_each_rank(int ranks, const std::function<void(int)> &work);

} // namespace annulus::test
