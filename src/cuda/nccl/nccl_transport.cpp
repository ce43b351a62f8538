// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/nccl_transport.hpp"

#include "core/error.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/device/cuda_handle.hpp"
#include "cuda/nccl/nccl_calls.hpp"
#include "cuda/nccl/nccl_rank.hpp"
#include "engine/device.hpp"
#include "transport/deadline.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace annulus {

namespace {

void check_device_index(const char *name, int device) {
    const int count = cuda_device_count();
    if (count == 0)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no CUDA device");
    if (device < 0 || device >= count)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %d; it must be from 0 to %d", name, device, count - 1);
}

// Communicators that do not belong to a transport yet. They are aborted on destruction.
struct NewCommunicators {
    std::vector<ncclComm_t> handles;

    explicit NewCommunicators(std::size_t count) : handles(count) {}
    ~NewCommunicators() {
        for (ncclComm_t comm : handles)
            if (comm)
                nccl().comm_abort(comm);
    }
    NewCommunicators(const NewCommunicators &) = delete;
    NewCommunicators &operator=(const NewCommunicators &) = delete;

    bool are_ready() const { return std::all_of(handles.begin(), handles.end(), is_ready); }
};

// Returns the ends of the ranks of this process, one for each device. `first_rank` is the rank of the first one.
std::vector<std::unique_ptr<Transport>> connect(const annulus_nccl_id &id, int ranks, int first_rank,
                                                const std::vector<int> &devices, Transport::Seconds creation_timeout,
                                                bool only_nccl) {
    ncclUniqueId nccl_id;
    std::memcpy(&nccl_id, &id, sizeof nccl_id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const Deadline deadline(creation_timeout);
    NewCommunicators comms(devices.size());
    NcclGroup group;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        const OnDevice on_device(devices[i]);
        const int rank = first_rank + static_cast<int>(i);
        group.add(nccl().comm_init_rank_config(&comms.handles[i], ranks, nccl_id, rank, &config),
                  "ncclCommInitRankConfig");
    }
    group.end();
    for (NcclPause pause; !comms.are_ready(); pause())
        if (deadline.passed())
            throw Error(ANNULUS_ERROR_COMM, "the other ranks of the NCCL communicator did not come within %g s",
                        deadline.seconds());
    std::vector<std::unique_ptr<Transport>> transports;
    transports.reserve(devices.size());
    for (ncclComm_t &comm : comms.handles) {
        transports.push_back(std::make_unique<NcclRank>(comm, NcclRank::Hold::owned, only_nccl));
        comm = nullptr;
    }
    return transports;
}

} // namespace

annulus_nccl_id make_nccl_id() {
    ncclUniqueId nccl_id;
    check(nccl().get_unique_id(&nccl_id), "ncclGetUniqueId");
    annulus_nccl_id id;
    static_assert(sizeof id == sizeof nccl_id);
    std::memcpy(&id, &nccl_id, sizeof id);
    return id;
}

std::vector<std::unique_ptr<Transport>> make_nccl_transports(int ranks, const int *devices,
                                                             Transport::Seconds creation_timeout, bool only_nccl) {
    std::vector<int> chosen(ranks);
    if (devices)
        std::copy_n(devices, ranks, chosen.begin());
    else
        std::iota(chosen.begin(), chosen.end(), 0);
    for (int i = 0; i < ranks; ++i) {
        check_device_index(("devices[" + std::to_string(i) + "]").c_str(), chosen[i]);
        const auto here = chosen.begin() + i;
        if (const auto first = std::find(chosen.begin(), here, *here); first != here)
            throw Error(ANNULUS_ERROR_ARGUMENT, "devices[%d] is %d, as devices[%d] is; each must be another one", i,
                        *here, static_cast<int>(first - chosen.begin()));
    }
    return connect(make_nccl_id(), ranks, 0, chosen, creation_timeout, only_nccl);
}

std::unique_ptr<Transport> make_nccl_transport(const annulus_nccl_id &id, int ranks, int rank, int device,
                                               Transport::Seconds creation_timeout, bool only_nccl) {
    check_device_index("device", device);
    return std::move(connect(id, ranks, rank, {device}, creation_timeout, only_nccl).front());
}

std::unique_ptr<Transport> borrow_nccl_transport(void *nccl_comm, bool may_abort, bool only_nccl) {
    const NcclRank::Hold hold = may_abort ? NcclRank::Hold::borrowed_to_abort : NcclRank::Hold::borrowed;
    return std::make_unique<NcclRank>(static_cast<ncclComm_t>(nccl_comm), hold, only_nccl);
}

} // namespace annulus
