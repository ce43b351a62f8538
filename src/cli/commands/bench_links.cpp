// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_links.hpp"

#include "cli/arrays/dtype_bytes.hpp"
#include "cli/commands/bench_case.hpp"
#include "cli/commands/bench_cases.hpp"
#include "cli/commands/link_pairs.hpp"
#include "cli/devices/sample.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

namespace {

// A sender has this number of rows, a receiver one row, whose queries attend to the rows of both. So a message has many
// bytes and hardly any work.
constexpr std::int64_t sender_rows = 64;
constexpr std::int32_t head_dim = 128;
constexpr std::int64_t host_bytes = std::int64_t{1} << 24, cuda_bytes = std::int64_t{1} << 27; // of a large message
constexpr int warm_up_calls = 3;

HostName host_name() {
    HostName name{};
    if (gethostname(name.data(), name.size() - 1) != 0)
        throw Failure(exit_failed, "--links: the system does not tell the host's name");
    return name;
}

class LinkProbe {
  public:
    LinkProbe(const Rank &rank, Memory &memory, int repeats)
        : rank_(rank), memory_(memory), repeats_(repeats), dtype_(memory.fast_dtype()) {}

    // Returns the seconds of a call in which ranks agree but exchange nothing, beyond those of a rank alone.
    double agreement_seconds(const Pairs &pairs) {
        BenchCase alone = probe_case(1, false);
        alone.problem.tokens = 1;
        Workload workload(alone, Rank{.execution = rank_.execution}, memory_);
        return std::max(0.0, seconds(pairs, 1, false) - slowest_median(workload, pairs.counts));
    }

    Link link(const Pairs &pairs) {
        const std::int64_t head_bytes = 2 * sender_rows * head_dim * dtype_bytes(dtype_); // of K and V
        const auto heads = static_cast<std::int32_t>((memory_.is_host() ? host_bytes : cuda_bytes) / head_bytes);
        const double small = std::max(0.0, seconds(pairs, 1, true) - seconds(pairs, 1, false));
        const double large = seconds(pairs, heads, true) - seconds(pairs, heads, false) - small;
        if (large <= 0)
            throw Failure(exit_failed, "--links: the times vary too much to tell a rate; give more --repeats than " +
                                           std::to_string(repeats_));
        return {small, static_cast<double>(heads * head_bytes) / large};
    }

  private:
    // Returns a problem without tokens. If `exchanges`, segments have the rows of a sender and of its receiver.
    BenchCase probe_case(std::int32_t heads, bool exchanges) const {
        BenchCase probe;
        probe.problem.heads = heads;
        probe.problem.head_dim = head_dim;
        probe.problem.dtype = annulus_dtype_name(dtype_);
        probe.pattern.causal = true; // so that receivers send nothing
        probe.pattern.branches = {exchanges ? std::to_string(sender_rows + 1) + ":1" : "1:1"};
        return probe;
    }

    double seconds(const Pairs &pairs, std::int32_t heads, bool exchanges) {
        BenchCase probe = probe_case(heads, exchanges);
        std::vector<std::int64_t> lengths;
        for (std::size_t i = 0; i < pairs.order.size(); ++i)
            lengths.push_back(i % 2 ? 1 : sender_rows);
        probe.problem.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        probe.shards.emplace(lengths, pairs.order);
        Rank rank = rank_;
        rank.execution.exchange = exchange_name(ANNULUS_EXCHANGE_GATHER);
        Workload workload(probe, rank, memory_);
        return slowest_median(workload, pairs.counts);
    }

    // Returns the median, over the calls, of the seconds of the slowest of the ranks that count.
    double slowest_median(Workload &workload, const std::vector<bool> &counts) {
        Sample slowest;
        for (int i = 0; i < warm_up_calls + repeats_; ++i) {
            rank_.meet();
            const double own = memory_.seconds_of([&] { workload.forward(); });
            const std::vector<double> ranks = rank_.gather(own);
            double longest = 0;
            for (std::size_t rank = 0; rank < ranks.size(); ++rank)
                longest = counts[rank] ? std::max(longest, ranks[rank]) : longest;
            if (i >= warm_up_calls)
                slowest.add(longest);
        }
        return slowest.median();
    }

    const Rank &rank_;
    Memory &memory_;
    const int repeats_;
    const annulus_dtype dtype_;
};

} // namespace

Links measure_links(const Rank &rank, Memory &memory, int repeats) {
    const std::vector<HostName> hosts = rank.gather(host_name());
    const Pairs near = make_pairs(hosts, true), far = make_pairs(hosts, false);
    LinkProbe probe(rank, memory, repeats);
    Links links;
    std::string way = rank.has_process ? "processes" : "threads";
    if (rank.only_nccl)
        way += " over NCCL alone";
    else if (rank.has_process)
        way += memory.is_host() ? " over MPI" : " over NCCL";
    links.source = "annulus bench --links, " + counted(rank.count, "rank", "ranks") + ": " + way + " on " +
                   (memory.is_host() ? "CPUs" : "GPUs");
    links.are_of_gpus = !memory.is_host();
    links.agreement_seconds = probe.agreement_seconds(near.are_any() ? near : far);
    if (near.are_any())
        links.same_host = probe.link(near);
    if (far.are_any())
        links.other_hosts = probe.link(far);
    return links;
}

} // namespace annulus::cli
