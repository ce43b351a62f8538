// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes. no_mpi.cpp replaces mpi_ranks.cpp in a build without MPI.
#pragma once

#include "cli/ranks/ranks.hpp"

#include <memory>

namespace annulus::cli {

// Makes the ranks of the processes that mpirun started. mpi_place().count must be > 1.
std::unique_ptr<Ranks> make_mpi_ranks(const RankOptions &options, const ExecutionOptions &execution);

} // namespace annulus::cli
