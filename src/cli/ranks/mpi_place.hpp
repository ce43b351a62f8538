// SPDX-License-Identifier: Apache-2.0
// Where mpirun started this process as one of several: how many, and which.
#pragma once

namespace annulus::cli {

struct MpiPlace {
    int count = 1, rank = 0;
};

MpiPlace mpi_place();

} // namespace annulus::cli
