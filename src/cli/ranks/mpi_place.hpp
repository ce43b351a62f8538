// SPDX-License-Identifier: Apache-2.0
// Says whether mpirun started this process: the number of processes, and which one this is.
#pragma once

namespace annulus::cli {

struct MpiPlace {
    int count = 1, rank = 0;
};

MpiPlace mpi_place();

} // namespace annulus::cli
