// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes with contexts on CPUs, over MPI. In a build without MPI there are only refusals.
#pragma once

#include "ring/transport.hpp"

#include <memory>

namespace annulus {

// Over a duplicate of the MPI_Comm that `mpi_comm` points to. Collective.
std::unique_ptr<Transport> make_mpi_transport(const void *mpi_comm);

// The MPI library that is in use, or "none". Static.
const char *mpi_description() noexcept;

} // namespace annulus
