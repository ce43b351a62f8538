// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes with contexts on CPUs, over MPI: in the MPI plugin alone.
#pragma once

#include "transport/transport.hpp"

#include <cstddef>
#include <memory>

namespace annulus {

// Over a duplicate of the MPI_Comm that `mpi_comm` points to. Collective. Transfers go in pieces of so many bytes,
// which MPI counts in int; the same on all ranks.
std::unique_ptr<Transport> make_mpi_transport(const void *mpi_comm, std::size_t piece_bytes = std::size_t{1} << 30);

// The name and the version of the MPI library. Static.
const char *mpi_library_version() noexcept;

} // namespace annulus
