// SPDX-License-Identifier: Apache-2.0
// Measures the CPU's own rate: large single-precision matrix products by OpenBLAS, one on each thread of the benchmark.
#pragma once

#include "cli/devices/yardstick.hpp"

namespace annulus::cli {

Yardstick sgemm_yardstick(int threads);

} // namespace annulus::cli
