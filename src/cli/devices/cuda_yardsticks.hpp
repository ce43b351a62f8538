// SPDX-License-Identifier: Apache-2.0
// A GPU's own rates.
#pragma once

#include "cli/devices/cuda_driver.hpp"
#include "cli/devices/memory.hpp"

namespace annulus::cli {

// A large matrix product by cuBLAS on the stream, in the precision that a call has for the dtype.
Yardstick gemm_yardstick(Memory &memory, CudaDriver::Stream stream, annulus_dtype dtype, bool allow_tf32);

// A copy within the device's memory; bytes read and bytes written both count.
Yardstick copy_yardstick(Memory &memory, CudaDriver::Stream stream);

} // namespace annulus::cli
