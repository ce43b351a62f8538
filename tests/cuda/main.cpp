// SPDX-License-Identifier: Apache-2.0
// Skips the whole program where there is no CUDA device or, with ONLY_CAPABILITY, where the first is of another compute
// capability than that.
#include "cuda/cuda_memory.hpp"

#include <annulus/annulus.h>

#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char **argv) {
    testing::InitGoogleTest(&argc, argv);
    int32_t devices = 0;
    if (annulus_device_count(ANNULUS_DEVICE_CUDA, &devices) != ANNULUS_OK) {
        std::fprintf(stderr, "counting the CUDA devices: %s\n", annulus_last_error());
        return 1;
    }
    if (devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77;
    }
#ifdef ONLY_CAPABILITY
    cudaDeviceProp device{};
    annulus::test::check_cuda(cudaGetDeviceProperties(&device, 0));
    if (10 * device.major + device.minor != ONLY_CAPABILITY) {
        std::printf("skipped: %s is of compute capability %d.%d\n", device.name, device.major, device.minor);
        return 77;
    }
#endif
    return RUN_ALL_TESTS();
}
