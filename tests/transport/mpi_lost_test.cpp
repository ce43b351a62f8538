// SPDX-License-Identifier: Apache-2.0
// A process dies or stops in the middle of a call. The calls of the other processes fail in time, and their objects can
// be destroyed. Runs under `mpirun --enable-recovery`, which lets the other processes live, with the word `killed` or
// `stopped`. Each process reports one case in TAP, without a number since they come in any order.
#include "core/error.hpp"
#include "cpu/cpu_device.hpp"
#include "mpi/mpi_transport.hpp"

#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace annulus;

namespace {

int freed = 0; // number of communicators

} // namespace

// Replaces the MPI library's function, for annulus too. The function is collective: if a process is lost it may wait
// forever, although Open MPI's does not.
extern "C" int MPI_Comm_free(MPI_Comm *comm) {
    ++freed;
    return PMPI_Comm_free(comm);
}

namespace {

using Seconds = std::chrono::duration<double>;

constexpr int lost = 1;
constexpr Seconds timeout{1};
constexpr Seconds max_stopped_time = 1.1 * timeout + Seconds(0.5); // half a second for scheduling on a busy machine
constexpr Seconds max_killed_time{20}; // Open MPI itself waits for mpirun while it reports that a connection broke
constexpr std::size_t small = 1 << 10, large = 1 << 22; // most of the large message waits for the receiver's help
constexpr int messages = 8;

// Returns true if the call fails before the limit. The library below may notice before the timeout.
bool fails_in_time(const char *what, Seconds limit, const std::function<void()> &call) {
    const auto begin = std::chrono::steady_clock::now();
    try {
        call();
    } catch (const Error &error) {
        const Seconds taken = std::chrono::steady_clock::now() - begin;
        std::printf("# %s, after %.3f s: %s\n", what, taken.count(), error.what());
        return taken <= limit && (error.status() == ANNULUS_ERROR_COMM_LIBRARY ||
                                  (error.status() == ANNULUS_ERROR_COMM && taken >= timeout));
    }
    return false;
}

std::unique_ptr<Transport> make_transport() {
    const MPI_Comm world = MPI_COMM_WORLD;
    auto transport = make_mpi_transport(&world);
    transport->set_timeout(timeout);
    return transport;
}

std::vector<pid_t> gather(Transport &transport) {
    const pid_t mine = getpid();
    std::vector<pid_t> all(transport.size());
    transport.all_gather(&mine, all.data(), sizeof mine);
    return all;
}

// Small messages and a large one, as one rank sends and receives them.
class Messages {
  public:
    void begin(Transport &transport, Device &device, const std::vector<int> &peers) {
        for (const int peer : peers)
            for (int i = 0; i < messages; ++i) {
                const std::size_t bytes = i == 0 ? large : small;
                batch_.sends.push_back({peer, &sent_.emplace_back(bytes).front(), bytes});
                batch_.receives.push_back({peer, &received_.emplace_back(bytes).front(), bytes});
            }
        transport.begin(batch_, device, nullptr);
    }
    const Batch &batch() const { return batch_; }

  private:
    std::vector<std::vector<char>> sent_, received_;
    Batch batch_;
};

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    const bool is_killed = argc == 2 && std::string_view(argv[1]) == "killed";
    const Seconds limit = is_killed ? max_killed_time : max_stopped_time;
    // The processes that wait for the lost one, in calls of each kind.
    auto gathering = make_transport(), exchanging = make_transport();
    CpuDevice device;
    const std::vector<pid_t> processes = gather(*gathering); // from here on all processes are connected
    const int rank = gathering->rank(), size = gathering->size();
    if (rank == 0) {
        std::printf("1..%d\n", size - 1);
        std::fflush(stdout);
    }
    Messages own;
    if (rank == lost) {
        std::vector<int> others;
        for (int peer = 0; peer < size; ++peer)
            if (peer != rank)
                others.push_back(peer);
        own.begin(*exchanging, device, others);
        std::raise(is_killed ? SIGKILL : SIGSTOP);
    }
    // No rank hears of it from MPI before the calls.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    bool is_good = fails_in_time("exchange", limit, [&] {
        own.begin(*exchanging, device, {lost});
        exchanging->finish(own.batch(), device, nullptr);
    });
    is_good = is_good && exchanging->holds_memory(); // memory of what the lost process does not receive
    is_good = fails_in_time("gather", limit, [&] { gather(*gathering); }) && is_good;
    exchanging.reset();
    gathering.reset();
    is_good = is_good && freed == 0;
    std::printf("%s - rank %d\n", is_good ? "ok" : "not ok", rank);
    std::fflush(stdout);
    if (rank == 0 && !is_killed) {
        std::this_thread::sleep_for(2 * max_stopped_time); // the other processes still test
        kill(processes[lost], SIGKILL);
    }
    _exit(0); // MPI_Finalize() would wait for the lost process
}
