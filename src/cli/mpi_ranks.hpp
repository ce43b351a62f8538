// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes. A build without MPI has no_mpi.cpp in the place of mpi_ranks.cpp.
#pragma once

#include "ranks.hpp"

#include <memory>

namespace annulus::cli {

// Where mpirun started this process as one of several: how many, and which.
struct MpiPlace {
    int count = 1, rank = 0;
};
MpiPlace mpi_place();

// The processes that mpirun started; mpi_place().count > 1.
std::unique_ptr<Ranks> make_mpi_ranks(const RankOptions &options, const ExecutionOptions &execution);

} // namespace annulus::cli
