// SPDX-License-Identifier: Apache-2.0
// Skips the whole program if there is no CUDA device. With ONLY_CAPABILITY or LEAST_CAPABILITY it also skips if the
// first device has another compute capability, or an older one. Exact results are those of the engine `cpu`.
#include "cuda/cuda_memory.hpp"

#include "support/run.hpp"

#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char **argv) {
    testing::InitGoogleTest(&argc, argv);
    // Asks CUDA, not annulus: annulus sees no device if its plugin cannot be loaded, and then the tests must fail.
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77;
    }
#if defined(ONLY_CAPABILITY) || defined(LEAST_CAPABILITY)
    cudaDeviceProp device{};
    annulus::test::check_cuda(cudaGetDeviceProperties(&device, 0));
    const int capability = 10 * device.major + device.minor;
#ifdef ONLY_CAPABILITY
    const bool suits = capability == ONLY_CAPABILITY;
#else
    const bool suits = capability >= LEAST_CAPABILITY;
#endif
    if (!suits) {
        std::printf("skipped: %s is of compute capability %d.%d\n", device.name, device.major, device.minor);
        return 77;
    }
#endif
    annulus::test::exact_engine = ANNULUS_ENGINE_CPU;
    return RUN_ALL_TESTS();
}
