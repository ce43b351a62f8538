// SPDX-License-Identifier: Apache-2.0
// A rank over MPI. Rank 1 is lost in its second call: `lost_process WAY SENDS`. WAY is killed, stopped, exits or
// aborts. SENDS is the number of messages that rank 1 sends in this call before it is lost. lost_process_test.py starts
// the ranks and reads what they print. They must learn of the loss in time and still compute alone.
#include "support/ranks.hpp"
#include "support/run.hpp"

#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace {

std::string way;
int sends_left = -1; // messages until this process is lost; negative: it is never lost

void be_lost() {
    if (way == "killed")
        std::raise(SIGKILL);
    else if (way == "stopped")
        std::raise(SIGSTOP);
    else if (way == "exits")
        std::_Exit(0); // no MPI_Finalize(), which would wait for the other ranks
    else
        std::abort();
}

} // namespace

// Replaces the MPI library's function, in annulus, too.
extern "C" int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request *request) {
    const int code = PMPI_Isend(data, count, type, to, tag, comm, request);
    if (sends_left > 0 && --sends_left == 0)
        be_lost();
    return code;
}

namespace annulus::test {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int lost = 1;
constexpr double timeout = 1;
constexpr Seconds most{20}; // Open MPI itself may wait for mpirun while it reports a broken connection

std::ptrdiff_t entries(const char *directory) {
    return std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator());
}

struct Failure {
    annulus_status status;
    std::string message;
    Seconds taken;
};

Failure next_failure(const Call &call, annulus_context *context) {
    for (int i = 0; i < 4; ++i) { // the lost rank may have done its part of a call before
        const auto begin = std::chrono::steady_clock::now();
        const annulus_status status = i % 2 == 0 ? call.forward(context) : call.backward(context);
        const Seconds taken = std::chrono::steady_clock::now() - begin;
        if (status != ANNULUS_OK)
            return {status, annulus_last_error(), taken};
    }
    throw std::runtime_error("no call failed");
}

void expect(bool is_good, const char *what) {
    if (!is_good)
        throw std::runtime_error(what);
}

// Calls until a call fails, as it must, then computes alone.
void live(int rank, int ranks, int sends) {
    const Problem problem = {
        .length = 300, .heads = 2, .dim = 16, .branches = {{}, {.dilation = 3}}, .dtype = ANNULUS_FLOAT32};
    RankOptions options;
    options.lengths = even_lengths(problem.length, ranks);
    options.timeout = timeout;
    const Problem shard = shard_problem(problem, options.lengths[static_cast<std::size_t>(rank)]);
    Call call(shard, random_inputs(shard, 2), host_memory());
    const auto files = entries("/proc/self/fd"), threads = entries("/proc/self/task");

    const MPI_Comm world = MPI_COMM_WORLD;
    annulus_comm *made = nullptr;
    check(annulus_comm_create_from_mpi(&made, &world, nullptr));
    Comm comm(made);
    const Context context = make_rank_context(problem, options, rank, made);
    check(call.forward(context.get()));
    check(call.backward(context.get()));
    if (rank == lost) {
        if (sends == 0)
            be_lost();
        sends_left = sends;
    }
    const Failure failure = next_failure(call, context.get());
    std::printf("# rank %d: %s after %.3f s: %s\n", rank, annulus_status_name(failure.status), failure.taken.count(),
                failure.message.c_str());
    expect(rank != lost, "the rank that was to be lost was not");
    expect(failure.status == ANNULUS_ERROR_COMM || failure.status == ANNULUS_ERROR_COMM_LIBRARY, "another status");
    expect(std::string(annulus_last_error_library()) == (failure.status == ANNULUS_ERROR_COMM_LIBRARY ? "mpi" : ""),
           "another library");
    expect((annulus_last_error_code() != 0) == (failure.status == ANNULUS_ERROR_COMM_LIBRARY), "another code");
    expect(failure.taken <= most, "too late");
    expect(status_of(made) == failure.status, "the communicator has another status");
    const Failure again = next_failure(call, context.get());
    expect(again.status == failure.status && again.message == failure.message, "another failure the second time");
    expect(again.taken.count() < timeout, "it waited the second time");

    check(annulus_context_set_comm(context.get(), nullptr));
    comm.reset();
    expect(entries("/proc/self/fd") <= files, "more open files than before");
    expect(entries("/proc/self/task") <= threads, "more threads than before");
    call.reset(random_inputs(shard, 2));
    check(call.forward(context.get()));
    check(call.backward(context.get()));
    expect(call.results().out == run(shard, random_inputs(shard, 2)).out, "another result alone");
}

} // namespace
} // namespace annulus::test

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    way = argv[1];
    MPI_Init(&argc, &argv);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    std::string outcome = "served on";
    try {
        annulus::test::live(rank, ranks, std::atoi(argv[2]));
    } catch (const std::exception &error) {
        outcome = error.what();
    }
    std::printf("rank %d: %s\n", rank, outcome.c_str());
    std::fflush(stdout);
    std::_Exit(0); // MPI_Finalize() would wait for the lost rank
}
