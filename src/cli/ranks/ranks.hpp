// SPDX-License-Identifier: Apache-2.0
// The ranks that share a job: threads of this process, or processes that mpirun started. One rank alone is the simplest
// case: it has no communicator.
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

    void add_to(Command &command);
};

// Where ranks meet.
class Meeting {
  public:
    virtual ~Meeting() = default;
    // `bytes` from each rank, in rank order into `all`. Waits for all ranks; throws where one of them has failed.
    virtual void all_gather(int rank, const void *mine, void *all, std::size_t bytes) = 0;
};

// One rank, as the thread that does its part sees it.
struct Rank {
    int index = 0, count = 1;
    ExecutionOptions execution;   // on its own device, with its part of the threads
    annulus_comm *comm = nullptr; // null where there is one rank
    bool has_process = true;      // no other rank is in this process
    Meeting *meeting = nullptr;   // null where there is one rank
    Sharding sharding = Sharding::even;

    // Of a sequence of `tokens` positions.
    Shards shards(std::int64_t tokens) const { return Shards(tokens, count, sharding); }
    // Makes the context's calls collective over these shards.
    void join(annulus_context *context, const Shards &shards) const;

    // What every rank gives, in rank order.
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
    // Whether rank 0 is in this process: it writes and prints what all have computed.
    virtual bool has_rank_0() const { return true; }
    // What each process does, once. A failure in one of them is a failure of all: the message is thrown where rank 0
    // is, elsewhere a failure without one.
    virtual void in_each_process(const std::function<void()> &work) { work(); }
    // Calls `work` for the ranks of this process, each in a thread of its own where there are several; at most once.
    // Where it fails for one, the others are woken up, and the failure is thrown that tells the cause.
    virtual void run(const std::function<void(const Rank &)> &work) = 0;
    // After run(): the process of rank 0 gets the results of ranks in other processes. `stretches` says where those of
    // a rank lie: where they were computed, of its own rank, and where they go, of all others in the process of rank 0.
    virtual void collect(const std::function<std::vector<Stretch>(int rank)> &) {}
};

// As many ranks as the options say or as mpirun started processes.
std::unique_ptr<Ranks> make_ranks(const RankOptions &options, const ExecutionOptions &execution);

} // namespace annulus::cli
