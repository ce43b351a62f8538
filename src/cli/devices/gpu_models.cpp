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

bool fits_fused(const GpuModel &model, const annulus_problem &problem) {
    return model.capability == 90 && problem.dtype != ANNULUS_FLOAT32;
}

// The limits of doc/limits.md.
bool fits_mma(const GpuModel &model, const annulus_problem &problem, annulus_pass pass) {
    if (problem.dtype != ANNULUS_FLOAT32)
        return true;
    return problem.head_dim <= (pass == ANNULUS_PASS_BACKWARD ? 128 : model.capability == 89 ? 192 : 256);
}

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

annulus_engine engine_on(const GpuModel &model, const annulus_problem &problem, annulus_pass pass,
                         const std::string &wanted) {
    if (problem.dtype == ANNULUS_FLOAT64)
        throw bad_input("--dtype float64: on GPUs it must be float32, bfloat16 or float16");
    const annulus_engine fastest = fits_fused(model, problem)       ? ANNULUS_ENGINE_FUSED
                                   : fits_mma(model, problem, pass) ? ANNULUS_ENGINE_MMA
                                                                    : ANNULUS_ENGINE_GEMM;
    if (wanted.empty() || wanted == annulus_engine_name(ANNULUS_ENGINE_AUTO))
        return fastest;
    if (wanted == annulus_engine_name(ANNULUS_ENGINE_GEMM))
        return ANNULUS_ENGINE_GEMM;
    if (wanted == annulus_engine_name(ANNULUS_ENGINE_MMA) && fits_mma(model, problem, pass))
        return ANNULUS_ENGINE_MMA;
    if (wanted == annulus_engine_name(ANNULUS_ENGINE_FUSED) && fits_fused(model, problem))
        return ANNULUS_ENGINE_FUSED;
    throw bad_input("--engine " + wanted + ": does not compute this on an " + model.name + "; " +
                    annulus_engine_name(fastest) + " does");
}

} // namespace annulus::cli
