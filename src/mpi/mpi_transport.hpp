// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes with contexts on CPUs, over MPI. This file is part of the MPI plugin alone.
#pragma once

#include "transport/transport.hpp"

#include <cstddef>
#include <memory>

namespace annulus {

// Makes a transport over a duplicate of the MPI_Comm that `mpi_comm` points to. Collective. Transfers are cut into
// pieces of `piece_bytes`, which MPI counts in int. It must be the same on all ranks.
std::unique_ptr<Transport> make_mpi_transport(const void *mpi_comm, std::size_t piece_bytes = std::size_t{1} << 30);

// Returns the name and the version of the MPI library. The text is static.
const char *mpi_library_version() noexcept;

} // namespace annulus
