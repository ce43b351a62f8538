// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/ranks.hpp"

#include "cli/ranks/mpi_place.hpp"
#include "cli/ranks/mpi_ranks.hpp"
#include "cli/ranks/thread_ranks.hpp"
#include "cli/report/failure.hpp"

#include <algorithm>
#include <string>

namespace annulus::cli {

namespace {

class OneRank final : public Ranks {
  public:
    explicit OneRank(const ExecutionOptions &execution) { rank_.execution = execution; }

    int count() const override { return 1; }
    void run(const std::function<void(const Rank &)> &work) override { work(rank_); }

  private:
    Rank rank_;
};

} // namespace

void RankOptions::add_to(Command &command, bool can_balance) {
    const std::string group = "Ranks";
    command
        .number<std::int64_t>(
            "--ranks", count, 1,
            "Share the sequence among P ranks, 1 unless given: threads of this process, which divide the CPU "
            "threads among themselves, or on CUDA the P devices from that of --device on. Under mpirun every "
            "process is a rank",
            max_ranks)
        .value("P")
        .group(group);
    add_shards_option(command, sharding, can_balance).group(group);
    command.number("--timeout", timeout, "How long a rank waits for another, 300 unless given")
        .value("SECONDS")
        .group(group);
    command
        .flag("--only-nccl", only_nccl,
              "On CUDA, agree and exchange rows by NCCL alone, as hosts and containers do that cannot reach one "
              "another's memory")
        .group(group);
}

void Rank::join(annulus_context *context, const Shards &shards) const {
    if (!comm)
        return;
    check(annulus_context_set_comm(context, comm), "--ranks");
    const annulus_shards view = shards.view();
    check(annulus_context_set_shards(context, &view));
}

std::unique_ptr<Ranks> make_ranks(const RankOptions &options, const ExecutionOptions &execution) {
    const std::int64_t count = options.count.value_or(1);
    if (options.only_nccl && execution.device.kind != ANNULUS_DEVICE_CUDA)
        throw bad_input("--only-nccl is for ranks on GPUs: give --device cuda");
    if (options.only_nccl && count == 1 && mpi_place().count == 1)
        throw bad_input("--only-nccl is for several ranks: give --ranks");
    if (const int processes = mpi_place().count; processes > 1) {
        if (options.count && count != processes)
            throw bad_input("--ranks " + std::to_string(count) + ": mpirun started " + std::to_string(processes) +
                            " processes, each of which is a rank");
        return make_mpi_ranks(options, execution);
    }
    if (count > 1)
        return make_thread_ranks(static_cast<int>(count), options, execution);
    return std::make_unique<OneRank>(execution);
}

} // namespace annulus::cli
