// SPDX-License-Identifier: Apache-2.0
// The ranks that share a job: threads of this process, or processes that mpirun started. A single rank has no
// communicator.
#pragma once

#include "cli/arrays/host_tensor.hpp"
#include "cli/devices/execution_options.hpp"
#include "cli/ranks/shard.hpp"
#include "cli/report/options.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

namespace annulus::cli {

inline constexpr std::int64_t max_ranks = 4096;

struct RankOptions {
    std::optional<std::int64_t> count;
    Sharding sharding = Sharding::even;
    std::optional<double> timeout; // seconds
    bool only_nccl = false;        // GPUs use NCCL alone

    // can_balance: as add_shards_option() takes it.
    void add_to(Command &command, bool can_balance);
};

// A barrier and all-gather of the ranks.
class Meeting {
  public:
    virtual ~Meeting() = default;
    // Gathers `bytes` from each rank, in rank order, into `all`. Waits for all ranks; throws if one of them has failed.
    virtual void all_gather(int rank, const void *mine, void *all, std::size_t bytes) = 0;
};

// One rank, as seen by the thread that computes its part.
struct Rank {
    int index = 0, count = 1;
    ExecutionOptions execution;   // on its own device, with its part of the threads
    annulus_comm *comm = nullptr; // null if there is one rank
    bool has_process = true;      // no other rank is in this process
    Meeting *meeting = nullptr;   // null if there is one rank
    Sharding sharding = Sharding::even;
    bool only_nccl = false; // the communicator uses NCCL alone

    // Returns the shards of a sequence of `tokens` positions.
    Shards shards(std::int64_t tokens) const { return Shards(tokens, count, sharding); }
    // Returns the shards of a problem; the context has the config.
    Shards shards(annulus_context *context, const annulus_problem &problem) const {
        return Shards(context, problem, count, sharding);
    }
    // Makes the context's calls collective over the shards, if there are several ranks.
    void join(annulus_context *context, const Shards &shards) const;

    // Returns the value of every rank, in rank order.
    template <class T> std::vector<T> gather(const T &mine) const {
        static_assert(std::is_trivially_copyable_v<T>);
        std::vector<T> all(static_cast<std::size_t>(count), mine);
        if (meeting)
            meeting->all_gather(index, &mine, all.data(), sizeof mine);
        return all;
    }
    void meet() const { gather(char{}); }
};

class Ranks {
  public:
    virtual ~Ranks() = default;

    virtual int count() const = 0;
    // True if rank 0 is in this process. It writes and prints the results of all ranks.
    virtual bool has_rank_0() const { return true; }
    // Does the work of a process; call it once. If one process fails, all fail. The process of rank 0 throws the
    // message, other processes throw a failure without one.
    virtual void in_each_process(const std::function<void()> &work) { work(); }
    // Calls `work` for the ranks of this process, each in a thread of its own if there are several. Call it at most
    // once. If one rank fails, the other ranks wake up, and the failure that is the cause is thrown.
    virtual void run(const std::function<void(const Rank &)> &work) = 0;
    // Sends the results of ranks in other processes to the process of rank 0, after run(). `stretches` returns where
    // the results of a rank lie. In the rank's own process it is the place where they were computed, in the process of
    // rank 0 the place where they go.
    virtual void collect(const std::function<std::vector<Stretch>(int rank)> &) {}
};

// Makes the ranks that the options or mpirun ask for.
std::unique_ptr<Ranks> make_ranks(const RankOptions &options, const ExecutionOptions &execution);

} // namespace annulus::cli
