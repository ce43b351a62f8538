// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes. A build without MPI has no_mpi.cpp instead of mpi_ranks.cpp.
#pragma once

#include "cli/ranks/ranks.hpp"

#include <memory>

namespace annulus::cli {

// The processes that mpirun started; mpi_place().count > 1.
std::unique_ptr<Ranks> make_mpi_ranks(const RankOptions &options, const ExecutionOptions &execution);

} // namespace annulus::cli
