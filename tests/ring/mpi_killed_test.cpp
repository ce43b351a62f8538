// SPDX-License-Identifier: Apache-2.0
// A process dies while the others wait for it: their calls fail in time, and what is left can be destroyed. Under
// `mpirun --enable-recovery`, which lets the others live. Each of them reports one case in TAP, without a number since
// they come in any order.
#include "core/error.hpp"
#include "cpu/cpu_device.hpp"
#include "ring/mpi_transport.hpp"

#include <mpi.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <unistd.h>

using namespace annulus;

namespace {

constexpr int killed = 1;

// The library below may notice first.
bool fails(const char *what, const std::function<void()> &call) {
    try {
        call();
    } catch (const Error &error) {
        std::printf("# %s: %s\n", what, error.what());
        return error.status() == ANNULUS_ERROR_COMM || error.status() == ANNULUS_ERROR_MPI;
    }
    return false;
}

std::unique_ptr<Transport> make_transport() {
    const MPI_Comm world = MPI_COMM_WORLD;
    auto transport = make_mpi_transport(&world);
    transport->set_timeout(Transport::Seconds(1));
    return transport;
}

bool gather_fails(Transport &transport) {
    const char mine = 0;
    std::vector<char> all(transport.size());
    return fails("gather", [&] { transport.all_gather(&mine, all.data(), 1); });
}

// More bytes than are sent without the receiver's help.
bool exchange_fails(Transport &transport) {
    CpuDevice device;
    std::vector<char> to(1 << 22), from(1 << 22);
    const Batch batch{{{killed, to.data(), to.size()}}, {{killed, from.data(), from.size()}}};
    return fails("exchange", [&] {
        transport.begin(batch, device, nullptr);
        transport.finish(batch, device, nullptr);
    });
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    auto gathering = make_transport(), exchanging = make_transport();
    const int rank = gathering->rank();
    if (rank == 0) {
        std::printf("1..%d\n", gathering->size() - 1);
        std::fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == killed)
        std::raise(SIGKILL);
    const bool is_good = gather_fails(*gathering) && exchange_fails(*exchanging);
    gathering.reset();
    exchanging.reset();
    std::printf("%s - rank %d\n", is_good ? "ok" : "not ok", rank);
    std::fflush(stdout);
    _exit(0); // MPI_Finalize() would wait for the dead
}
