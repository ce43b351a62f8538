// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs with a subject's engine: over the local transport, with several ranks on a GPU if there are too few
// GPUs, and over NCCL with two or more GPUs: once with a board, and once by NCCL alone.
#include "ranks/ranks_subject.hpp"

#include "cuda/cuda_memory.hpp"
#include "cuda/nccl_comms.hpp"
#include "engines/subject.hpp"

#include <algorithm>
#include <map>
#include <memory>

namespace annulus::test {
namespace {

int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::vector<Memory *> memories_of(int ranks) {
    static std::vector<std::unique_ptr<CudaMemory>> memories;
    while (static_cast<int>(memories.size()) < ranks)
        memories.push_back(std::make_unique<CudaMemory>(
            CudaMemory::Order::own_stream, static_cast<int>(memories.size()) % std::max(1, device_count())));
    std::vector<Memory *> pointers;
    for (int i = 0; i < ranks; ++i)
        pointers.push_back(memories[static_cast<std::size_t>(i)].get());
    return pointers;
}

const std::vector<Comm> &local_comms(int ranks) {
    static std::vector<Comm> comms;
    return comms = make_local_comms(ranks);
}

// Kept between tests: making them takes long.
template <std::uint64_t flags> const std::vector<Comm> &nccl_comms(int ranks) {
    static std::map<int, std::vector<Comm>> all;
    std::vector<Comm> &comms = all[ranks];
    if (comms.empty())
        comms = make_nccl_comms(ranks, flags);
    return comms;
}

// An engine that can refuse problems refuses shards that cut a segment in Hilbert order.
const char *refusal_of_shards(const Problem &problem) {
    for (const BranchSpec &branch : problem.branches)
        if (branch.order == ANNULUS_ORDER_HILBERT && branch.dilation > 1)
            return "the engine takes whole segments along a curve only";
    return subject().refusal_of(problem);
}

} // namespace

std::vector<RanksWay> ranks_ways() {
    RunOptions run = subject();
    if (run.refusal)
        run.refusal = refusal_of_shards;
    std::vector<RanksWay> ways = {{"local", run, {3}, local_comms, memories_of}};
    if (const int devices = device_count(); devices >= 2) {
        ways.push_back({"nccl", run, {std::min(4, devices)}, nccl_comms<0>, memories_of});
        ways.push_back({"only_nccl", run, {2}, nccl_comms<ANNULUS_COMM_ONLY_NCCL>, memories_of});
    }
    return ways;
}

std::vector<annulus_dtype> ranks_rule_dtypes() {
    return ranks_dtypes();
}

// Two dtypes are enough.
std::vector<annulus_dtype> ranks_dtypes() {
    std::vector<annulus_dtype> dtypes = subject_dtypes();
    dtypes.resize(2);
    return dtypes;
}

} // namespace annulus::test
