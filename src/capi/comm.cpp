// SPDX-License-Identifier: Apache-2.0
// annulus/comm.h, except its functions for contexts.
#include "call/comm.hpp"

#include "call/backends.hpp"
#include "capi/guard.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"
#include "engine/cuda_plugin.hpp"
#include "transport/deadline.hpp"
#include "transport/local_transport.hpp"
#include "transport/mpi_plugin.hpp"
#include "transport/nccl_transports.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

using namespace annulus;

namespace {

const NcclTransports &nccl_transports() {
    if (const NcclTransports *const nccl = cuda_plugin("NCCL").nccl)
        return *nccl;
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no NCCL: this annulus was built without it");
}

// The checked options of a constructor.
struct CreationOptions {
    Transport::Seconds timeout;
    std::uint64_t flags;

    bool only_nccl() const { return (flags & ANNULUS_COMM_ONLY_NCCL) != 0; }
};

// Checks a constructor's options. `flags` are the flags that the constructor knows.
CreationOptions checked_options(const annulus_comm_options *options, std::uint64_t flags = 0) {
    annulus_comm_options given = ANNULUS_COMM_OPTIONS_INIT;
    if (options)
        given = read_sized("options", options, &annulus_comm_options::flags);
    if (!std::isfinite(given.creation_timeout) || given.creation_timeout < 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "creation_timeout of options is %g; it must be a finite number, at least 0",
                    given.creation_timeout);
    if ((given.flags & ~flags) != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "flags of options is %llu; here it must be 0%s",
                    static_cast<unsigned long long>(given.flags),
                    flags == 0                        ? ""
                    : flags == ANNULUS_COMM_ONLY_NCCL ? " or ANNULUS_COMM_ONLY_NCCL (2)"
                                                      : ", ANNULUS_COMM_MAY_ABORT (1), ANNULUS_COMM_ONLY_NCCL (2) or "
                                                        "their sum");
    return {given.creation_timeout == 0 ? default_timeout : Transport::Seconds(given.creation_timeout), given.flags};
}

std::unique_ptr<annulus_comm> make_comm(std::unique_ptr<Transport> transport) {
    return std::make_unique<annulus_comm>(annulus_comm{std::make_shared<CommEnd>(std::move(transport))});
}

void hand_out(annulus_comm **comms, std::vector<std::unique_ptr<Transport>> ends) {
    std::vector<std::unique_ptr<annulus_comm>> made;
    for (std::unique_ptr<Transport> &end : ends)
        made.push_back(make_comm(std::move(end)));
    std::ranges::transform(made, comms, [](std::unique_ptr<annulus_comm> &comm) { return comm.release(); });
}

const CommEnd &end_of(const annulus_comm *comm) {
    const CommEnd &end = *required(comm, "comm").end;
    end.check_process("comm");
    return end;
}

// Returns how many CUDA devices there are, at least 1. Throws with the reason if there is none.
int cuda_devices() {
    const int count = device_count(ANNULUS_DEVICE_CUDA);
    if (count == 0)
        find_backend(ANNULUS_DEVICE_CUDA).make_device(0); // throws the reason
    return count;
}

// Returns the device of each rank.
std::vector<int> checked_devices(const std::int32_t *devices, int ranks) {
    const int count = cuda_devices();
    check_between("ranks", ranks, 1, count);
    std::vector<int> checked(ranks);
    std::iota(checked.begin(), checked.end(), 0);
    if (devices)
        std::copy_n(devices, ranks, checked.begin());
    for (auto device = checked.begin(); device != checked.end(); ++device) {
        check_between("an element of devices", *device, 0, count - 1);
        if (std::find(checked.begin(), device, *device) != device)
            throw Error(ANNULUS_ERROR_ARGUMENT, "devices has %d twice; every rank must have a device of its own",
                        *device);
    }
    return checked;
}

} // namespace

annulus_status annulus_comm_create_local(annulus_comm **comms, int32_t ranks, const annulus_comm_options *options) {
    return guard([&] {
        required(comms, "comms");
        check_between("ranks", ranks, 1, max_ranks);
        checked_options(options);
        hand_out(comms, make_local_transports(ranks));
    });
}

annulus_status annulus_comm_create_from_mpi(annulus_comm **comm, const void *mpi_comm,
                                            const annulus_comm_options *options) {
    return guard([&] {
        required(comm, "comm");
        check_not_null("mpi_comm", mpi_comm);
        checked_options(options);
        *comm = make_comm(make_transport_of_mpi_plugin(mpi_comm)).release();
    });
}

annulus_status annulus_nccl_id_generate(annulus_nccl_id *id) {
    return guard([&] {
        required(id, "id");
        *id = nccl_transports().make_id();
    });
}

annulus_status annulus_comm_create_nccl(annulus_comm **comm, const annulus_nccl_id *id, int32_t ranks, int32_t rank,
                                        int32_t device, const annulus_comm_options *options) {
    return guard([&] {
        required(comm, "comm");
        required(id, "id");
        check_at_least("ranks", ranks, 1);
        check_between("rank", rank, 0, ranks - 1);
        const CreationOptions creation = checked_options(options, ANNULUS_COMM_ONLY_NCCL);
        check_between("device", device, 0, cuda_devices() - 1);
        *comm = make_comm(nccl_transports().make_one(*id, ranks, rank, device, creation.timeout, creation.only_nccl()))
                    .release();
    });
}

annulus_status annulus_comm_create_nccl_devices(annulus_comm **comms, int32_t ranks, const int32_t *devices,
                                                const annulus_comm_options *options) {
    return guard([&] {
        required(comms, "comms");
        check_at_least("ranks", ranks, 1);
        const CreationOptions creation = checked_options(options, ANNULUS_COMM_ONLY_NCCL);
        const std::vector<int> chosen = checked_devices(devices, ranks);
        hand_out(comms, nccl_transports().make_all(ranks, chosen.data(), creation.timeout, creation.only_nccl()));
    });
}

annulus_status annulus_comm_create_from_nccl(annulus_comm **comm, const void *nccl_comm,
                                             const annulus_comm_options *options) {
    return guard([&] {
        required(comm, "comm");
        check_not_null("nccl_comm", nccl_comm);
        void *handle = nullptr;
        std::memcpy(&handle, nccl_comm, sizeof handle);
        check_not_null("the ncclComm_t that nccl_comm points to", handle);
        const CreationOptions creation = checked_options(options, known_comm_flags);
        const bool may_abort = (creation.flags & ANNULUS_COMM_MAY_ABORT) != 0;
        *comm = make_comm(nccl_transports().borrow(handle, may_abort, creation.only_nccl())).release();
    });
}

annulus_status annulus_comm_size(const annulus_comm *comm, int32_t *size) {
    return guard([&] {
        required(size, "size");
        *size = end_of(comm).size();
    });
}

annulus_status annulus_comm_rank(const annulus_comm *comm, int32_t *rank) {
    return guard([&] {
        required(rank, "rank");
        *rank = end_of(comm).rank();
    });
}

annulus_status annulus_comm_set_timeout(annulus_comm *comm, double seconds) {
    return guard([&] {
        const CommUse use(required(comm, "comm").end, "comm");
        if (!std::isfinite(seconds) || seconds <= 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "seconds is %g; it must be a finite number above 0", seconds);
        use.transport().set_timeout(Transport::Seconds(seconds));
    });
}

annulus_status annulus_comm_status(const annulus_comm *comm, annulus_status *status) {
    return guard([&] {
        const Transport &transport = end_of(comm).transport();
        required(status, "status");
        const std::optional<Error> failure = transport.failure();
        *status = failure ? keep_error(*failure) : ANNULUS_OK;
    });
}

annulus_status annulus_comm_abort(annulus_comm *comm) {
    return guard([&] { end_of(comm).transport().abort(); });
}

void annulus_comm_destroy(annulus_comm *comm) {
    const CancellationOff cancellation_off;
    if (comm && comm->end->is_of_this_process()) { // a forked child cannot end it
        comm->end->destroy();
        delete comm;
    }
}
