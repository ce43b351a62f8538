// SPDX-License-Identifier: Apache-2.0
// GPUs that `annulus plan` knows by name, so that it can plan for machines without them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

// The numbers of a data sheet, except `mma_flops`.
struct GpuModel {
    const char *name;
    int capability; // the compute capability: 90 for 9.0
    int multiprocessors;
    std::uint64_t memory_bytes;
    double tensor_flops;  // FLOP/s of dense products of 16-bit numbers with float32 sums
    double mma_flops;     // the part of tensor_flops that mma.sync is assumed to reach
    double float32_flops; // FLOP/s
    double memory_rate;   // bytes/s
    const char *link;     // to the other GPUs of its host
    double link_rate;     // bytes/s in each direction
};

std::vector<std::string> gpu_model_names();
// Throws Failure if there is no such model.
const GpuModel &gpu_model(const std::string &name);

} // namespace annulus::cli
