// SPDX-License-Identifier: Apache-2.0
#include "ranks.hpp"

#include "mpi_ranks.hpp"
#include "text.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace annulus::cli {

namespace {

constexpr std::int64_t max_ranks = 4096;

class OneRank final : public Ranks {
  public:
    explicit OneRank(const ExecutionOptions &execution) { rank_.execution = execution; }

    int count() const override { return 1; }
    void run(const std::function<void(const Rank &)> &work) override { work(rank_); }

  private:
    Rank rank_;
};

std::optional<int> number_in_environment(const char *name) {
    const char *text = std::getenv(name);
    const std::optional<std::int64_t> number = text ? parse_integer(text) : std::nullopt;
    return number && *number >= 0 && *number <= max_ranks ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

} // namespace

void RankOptions::add_to(CLI::App &command) {
    const std::string group = "Ranks";
    add_number<std::int64_t>(
        command, "--ranks", count,
        "Share the sequence among P ranks, 1 unless given: threads of this process, which divide the CPU "
        "threads among themselves, or on CUDA the P devices from that of --device on. Under mpirun every "
        "process is a rank")
        ->type_name("P")
        ->group(group);
    add_number<double>(command, "--timeout", timeout, "How long a rank waits for another, 300 unless given")
        ->type_name("SECONDS")
        ->group(group);
}

Shard shard_of(std::int64_t tokens, std::int64_t rank, std::int64_t ranks) {
    const std::int64_t each = tokens / ranks, more = tokens % ranks;
    return {rank * each + std::min(rank, more), each + (rank < more ? 1 : 0)};
}

void Rank::join(annulus_context *context, std::int64_t tokens) const {
    if (!comm)
        return;
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < count; ++i)
        lengths.push_back(shard_of(tokens, i, count).length);
    check(annulus_context_set_comm(context, comm), "--ranks");
    check(annulus_context_set_shards(context, lengths.data(), count));
}

std::unique_ptr<Ranks> make_ranks(const RankOptions &options, const ExecutionOptions &execution) {
    const std::int64_t count = options.count.value_or(1);
    if (count < 1 || count > max_ranks)
        throw bad_input("--ranks " + std::to_string(count) + ": must be from 1 to " + std::to_string(max_ranks));
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

MpiPlace mpi_place() {
    for (const auto &[size, rank] : {std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
                                     std::pair("PMI_SIZE", "PMI_RANK")}) // Open MPI; MPICH and its descendants
        if (const std::optional<int> count = number_in_environment(size); count && *count > 1)
            return {*count, number_in_environment(rank).value_or(0)};
    return {};
}

Outcome outcome_of(const std::function<void()> &work) {
    try {
        work();
    } catch (const ConnectionFailure &failure) {
        return {Outcome::Kind::lost_connection, failure.exit_code(), failure.what()};
    } catch (const Failure &failure) {
        return {Outcome::Kind::failed, failure.exit_code(), failure.what()};
    } catch (const std::bad_alloc &) {
        return {Outcome::Kind::failed, exit_failed, "out of memory"};
    } catch (const std::exception &error) {
        return {Outcome::Kind::failed, exit_failed, error.what()};
    }
    return {};
}

const Outcome &cause_of(const std::vector<Outcome> &outcomes) {
    for (const Outcome::Kind kind : {Outcome::Kind::failed, Outcome::Kind::lost_connection})
        for (const Outcome &outcome : outcomes)
            if (outcome.kind == kind)
                return outcome;
    return outcomes.front();
}

} // namespace annulus::cli
