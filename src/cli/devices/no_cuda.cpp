// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/cuda.hpp"

namespace annulus::cli {

std::vector<CudaDevice> cuda_devices(int) {
    return {};
}

// Only where the library is of another build than the program.
std::unique_ptr<Memory> make_cuda_memory(int) {
    throw bad_input("--device: this program was built without CUDA");
}

} // namespace annulus::cli
