// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/gpu_models.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <algorithm>

namespace annulus::cli {

namespace {

constexpr double T = 1e12, G = 1e9;
constexpr std::uint64_t GB = 1'000'000'000;

// From NVIDIA's data sheets: A100 80GB (SXM), L40S, H100 (SXM), H200 (SXM), HGX B200. Rates with sparsity are halved,
// link rates are halved to those of one direction.
//
// mma_flops is an assumption: on 8.0 and 8.9 mma.sync reaches the whole rate. On 9.0, where only wgmma does, it is 0.62
// of it. On 10.0 a multiprocessor is taken to be as fast by mma.sync as on 9.0.
constexpr GpuModel models[] = {
    {"A100", 80, 108, 80 * GB, 312 * T, 312 * T, 19.5 * T, 2.039 * T, "NVLink", 300 * G},
    {"L40S", 89, 142, 48 * GB, 362 * T, 362 * T, 91.6 * T, 0.864 * T, "PCIe", 32 * G},
    {"H100", 90, 132, 80 * GB, 989 * T, 613 * T, 67 * T, 3.35 * T, "NVLink", 450 * G},
    {"H200", 90, 132, 141 * GB, 989 * T, 613 * T, 67 * T, 4.8 * T, "NVLink", 450 * G},
    {"B200", 100, 148, 180 * GB, 2250 * T, 687 * T, 75 * T, 7.7 * T, "NVLink", 900 * G},
};

} // namespace

std::vector<std::string> gpu_model_names() {
    std::vector<std::string> names;
    for (const GpuModel &model : models)
        names.emplace_back(model.name);
    return names;
}

const GpuModel &gpu_model(const std::string &name) {
    const auto *const found = std::ranges::find(models, name, &GpuModel::name);
    if (found == std::end(models))
        throw bad_input("--gpu " + name + ": must be " + joined(gpu_model_names(), ", "));
    return *found;
}

} // namespace annulus::cli
