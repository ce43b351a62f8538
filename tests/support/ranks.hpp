// SPDX-License-Identifier: Apache-2.0
// Computes a problem on several ranks, each with its shard or ranges, and puts the results together.
#pragma once

#include "support/run.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace annulus::test {

// Returns the library's struct for shards of these lengths, one for each rank. It points to the lengths.
annulus_shards view_of(const std::vector<std::int64_t> &lengths);

// The sequence divided into ranges, range after range. Each range belongs to a rank.
struct Ranges {
    std::vector<std::int64_t> lengths;
    std::vector<std::int32_t> ranks;

    // Returns the library's struct for this number of ranks. It points to arrays of this object.
    annulus_shards view(int ranks) const;
    // Returns the number of rows of each of `ranks` ranks.
    std::vector<std::int64_t> rows(int ranks) const;
};

// Returns the shards that annulus_balance_shards() finds.
Ranges balanced_ranges(const Problem &problem, int ranks);

struct RankOptions {
    std::vector<std::int64_t> lengths; // of the shards; each rank has one
    // If not empty, tells the contexts that the ranks have these ranges, of the lengths above. Inputs and results are
    // in the order of the ranges.
    Ranges ranges = {};
    bool set_lengths = false; // tells the contexts the lengths; otherwise the ranks find them
    double timeout = 60;      // seconds
    RunOptions run = {};
    std::vector<Memory *> memories = {}; // of the ranks; empty: run.memory for all
    // How the ranks write their gradients; empty: as the problem says.
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
// Returns the status that annulus_comm_status() tells. Throws if the call fails.
annulus_status status_of(const annulus_comm *comm);

// Split `length` into `ranks` shards: with lengths that differ by at most one row, or random lengths, which may be 0.
std::vector<std::int64_t> even_lengths(std::int64_t length, int ranks);
std::vector<std::int64_t> random_lengths(std::int64_t length, int ranks, std::uint64_t seed);

// Return the problem of a shard's tensors, and their values. The whole problem has no query window.
Problem shard_problem(const Problem &whole, std::int64_t length);
Inputs shard_inputs(const Problem &whole, const Inputs &inputs, std::int64_t start, std::int64_t length);

// Makes a context of the rank, ready for calls.
Context make_rank_context(const Problem &whole, const RankOptions &options, int rank, annulus_comm *comm);

// Computes one rank's part; `inputs` are those of the whole problem. Checks that the call sent and received the bytes
// that the library announced. Throws with the library's message if a call fails.
Results run_rank(const Problem &whole, const Inputs &inputs, const RankOptions &options, int rank, annulus_comm *comm);

// Computes all ranks, as threads. Throws the exception of the first rank that failed.
Results run_ranks(const Problem &whole, const Inputs &inputs, const RankOptions &options);
Results run_ranks(const Problem &whole, const Inputs &inputs, const RankOptions &options,
                  const std::vector<Comm> &comms);

// Computes all ranks with ranges of the sequence. Inputs and results are in the order of the positions.
Results run_ranges(const Problem &whole, const Inputs &inputs, RankOptions options, const Ranges &ranges,
                   const std::vector<Comm> &comms);

// Returns a shard's part of the results.
Results shard_results(const Problem &whole, const Results &results, std::int64_t start, std::int64_t length);

// Calls work(rank) on a thread for each rank and waits for all; rethrows the first exception by rank.
void for_each_rank(int ranks, const std::function<void(int)> &work);

} // namespace annulus::test
