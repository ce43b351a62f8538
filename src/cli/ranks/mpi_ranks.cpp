// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes which mpirun started. Only the main thread calls MPI. Before every exchange all processes
// tell one another whether they have failed. A process that fails reports it at its next such exchange, so no process
// waits for it in vain.
#include "cli/ranks/mpi_ranks.hpp"

#include "cli/ranks/outcome.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace annulus::cli {

namespace {

void check_mpi(int status) {
    if (status == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw ConnectionFailure("MPI: " + std::string(text, static_cast<std::size_t>(length)));
}

// Initializes and finalizes MPI.
class MpiSession {
  public:
    MpiSession() {
        int provided = 0;
        check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    ~MpiSession() { MPI_Finalize(); }
    MpiSession(const MpiSession &) = delete;
    MpiSession &operator=(const MpiSession &) = delete;
};

// The processes on this machine.
class Machine {
  public:
    Machine() { check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm_)); }
    ~Machine() { MPI_Comm_free(&comm_); }
    Machine(const Machine &) = delete;
    Machine &operator=(const Machine &) = delete;

    int rank() const {
        int rank = 0;
        check_mpi(MPI_Comm_rank(comm_, &rank));
        return rank;
    }

    // Returns the number of processes that may run on exactly the same processors as this one.
    int sharers() const {
        int size = 0;
        check_mpi(MPI_Comm_size(comm_, &size));
        cpu_set_t own;
        CPU_ZERO(&own);
        sched_getaffinity(0, sizeof own, &own);
        std::vector<cpu_set_t> all(static_cast<std::size_t>(size));
        check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm_));
        return static_cast<int>(
            std::ranges::count_if(all, [&](const cpu_set_t &set) { return CPU_EQUAL(&set, &own); }));
    }

  private:
    MPI_Comm comm_;
};

constexpr double default_timeout = 300; // seconds; also the library's default

class MpiRanks final : public Ranks, private Meeting {
  public:
    MpiRanks(const RankOptions &options, const ExecutionOptions &execution) : options_(options) {
        rank_.execution = execution;
        rank_.meeting = this;
        rank_.sharding = options.sharding;
        rank_.only_nccl = options.only_nccl;
        check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &rank_.count));
        check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_.index));
    }

    int count() const override { return rank_.count; }
    bool has_rank_0() const override { return rank_.index == 0; }

    void in_each_process(const std::function<void()> &work) override {
        const Outcome own = outcome_of(work);
        comm_.reset();
        const bool fine = own.kind == Outcome::Kind::fine;
        // There is no timeout here unless this process failed: rank 0 may need long to write after the others are done.
        if (!failure_is_known_ && all_are_fine(fine, fine ? std::nullopt : std::optional(own)))
            return;
        const Outcome cause = cause_of(exchange(own));
        throw Failure(cause.exit_code, cause.message);
    }

    void run(const std::function<void(const Rank &)> &work) override {
        connect();
        work(rank_);
        rank_.meet();
    }

    void collect(const std::function<std::vector<Stretch>(int rank)> &stretches) override {
        if (!has_rank_0())
            for_pieces(stretches(rank_.index), [](std::byte *data, int bytes) {
                check_mpi(MPI_Send(data, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD));
            });
        for (int rank = 1; has_rank_0() && rank < rank_.count; ++rank)
            for_pieces(stretches(rank), [rank](std::byte *data, int bytes) {
                check_mpi(MPI_Recv(data, bytes, MPI_BYTE, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            });
    }

  private:
    void connect() {
        annulus_comm *comm = nullptr;
        const Machine machine;
        DeviceChoice &device = rank_.execution.device;
        if (device.kind == ANNULUS_DEVICE_CPU) {
            if (rank_.execution.threads == 0)
                rank_.execution.threads = std::max(rank_.execution.thread_count() / machine.sharers(), 1);
            const MPI_Comm world = MPI_COMM_WORLD;
            check(annulus_comm_create_from_mpi(&comm, &world, nullptr));
        } else {
            std::int32_t devices = 0;
            check(annulus_device_count(ANNULUS_DEVICE_CUDA, &devices));
            device.index = (device.index + machine.rank()) % std::max(devices, 1);
            create_context(device); // throws the library's message if it cannot use the device
            annulus_comm_options options = ANNULUS_COMM_OPTIONS_INIT;
            options.creation_timeout = options_.timeout.value_or(0);
            options.flags = options_.only_nccl ? ANNULUS_COMM_ONLY_NCCL : 0;
            annulus_nccl_id id{};
            if (has_rank_0())
                check(annulus_nccl_id_generate(&id));
            id = rank_.gather(id).front();
            check(annulus_comm_create_nccl(&comm, &id, rank_.count, rank_.index, device.index, &options));
        }
        comm_.reset(comm);
        if (options_.timeout)
            check(annulus_comm_set_timeout(comm, *options_.timeout), "--timeout");
        rank_.comm = comm;
    }

    void all_gather(int, const void *mine, void *all, std::size_t bytes) override {
        if (!all_are_fine(true, Outcome{Outcome::Kind::lost_connection, exit_failed,
                                        "a process did not come within the timeout"})) {
            failure_is_known_ = true;
            throw ConnectionFailure("another rank has failed");
        }
        const int count = static_cast<int>(bytes);
        check_mpi(MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD));
    }

    // Waits for all processes and returns whether all are fine. If a process does not come within the timeout, ends the
    // job with `late`. Without `late` there is no timeout.
    bool all_are_fine(bool fine, const std::optional<Outcome> &late) const {
        int mine = fine, all = 0;
        MPI_Request request;
        check_mpi(MPI_Iallreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request));
        const auto start = std::chrono::steady_clock::now();
        for (int done = 0;;) {
            check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
            if (done)
                return all == 1;
            const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
            if (late && waited.count() > options_.timeout.value_or(default_timeout))
                give_up(*late);
            // Sleeps after 10 ms, since ranks that compute need the processors. Before, it only yields, to wake up
            // without delay.
            if (waited > std::chrono::milliseconds(10))
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            else
                std::this_thread::yield();
        }
    }

    // Ends all processes, since one does not answer.
    [[noreturn]] static void give_up(const Outcome &late) {
        std::fprintf(stderr, "annulus: %s\n", late.message.c_str());
        MPI_Abort(MPI_COMM_WORLD, late.exit_code);
        std::abort();
    }

    // Returns the outcomes of all ranks.
    std::vector<Outcome> exchange(const Outcome &own) const {
        struct Note {
            Outcome::Kind kind;
            int exit_code;
            char message[1024];
        };
        Note note{own.kind, own.exit_code, {}};
        std::strncpy(note.message, own.message.c_str(), sizeof note.message - 1);
        std::vector<Note> notes(static_cast<std::size_t>(rank_.count));
        check_mpi(MPI_Allgather(&note, sizeof note, MPI_BYTE, notes.data(), sizeof note, MPI_BYTE, MPI_COMM_WORLD));
        std::vector<Outcome> outcomes;
        for (const Note &each : notes)
            outcomes.push_back({each.kind, each.exit_code, each.message});
        return outcomes;
    }

    // Calls pass() with parts of the stretches whose bytes fit into int.
    template <class Pass> static void for_pieces(const std::vector<Stretch> &stretches, const Pass &pass) {
        constexpr std::size_t max_bytes = std::size_t{1} << 30;
        for (auto [data, left] : stretches)
            while (left > 0) {
                const std::size_t bytes = std::min(left, max_bytes);
                pass(data, static_cast<int>(bytes));
                data += bytes;
                left -= bytes;
            }
    }

    const MpiSession session_;
    const RankOptions options_;
    Rank rank_;
    Comm comm_;
    bool failure_is_known_ = false; // all processes know that one has failed
};

} // namespace

std::unique_ptr<Ranks> make_mpi_ranks(const RankOptions &options, const ExecutionOptions &execution) {
    return std::make_unique<MpiRanks>(options, execution);
}

} // namespace annulus::cli
