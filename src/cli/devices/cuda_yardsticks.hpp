// SPDX-License-Identifier: Apache-2.0
// Measures a GPU's own rates.
#pragma once

#include "cli/devices/cuda_driver.hpp"
#include "cli/devices/memory.hpp"

namespace annulus::cli {

// Returns a large matrix product by cuBLAS on the stream, in the precision that the library uses for the dtype.
Yardstick gemm_yardstick(Memory &memory, CudaDriver::Stream stream, annulus_dtype dtype, bool allow_tf32);

// Returns a copy within the device's memory. The bytes read and the bytes written both count.
Yardstick copy_yardstick(Memory &memory, CudaDriver::Stream stream);

} // namespace annulus::cli
