// SPDX-License-Identifier: Apache-2.0
// The library's part for MPI, a plugin (engine/plugin.hpp): it alone is linked with an MPI library.
//
// An MPI_Comm says nothing of the MPI library that it is of: an int in one, a pointer in another. A process may have
// loaded several, since the plugin brings its own along. So MPI is refused where the plugin's calls do not reach the
// library that it was linked with, and a communicator where MPI runs in another one.
#pragma once

#include "transport/transport.hpp"

#include <memory>

namespace annulus {

// What the plugin offers. Its one exported function, `const MpiPlugin *annulus_mpi_plugin()`, returns it.
struct MpiPlugin {
    const char *version; // of annulus; in all versions the first
    // PMPI_Initialized() as the plugin's calls find it: under that name no tool stands before the library's own.
    int (*initialized)(int *answer);
    std::unique_ptr<Transport> (*make_transport)(const void *mpi_comm);
    const char *(*library_version)() noexcept;
};

// As make_mpi_transport() (transport/mpi_transport.hpp). Throws Error(ANNULUS_ERROR_UNSUPPORTED) where the plugin
// cannot be loaded or mpi_comm may be of another MPI library.
std::unique_ptr<Transport> make_transport_of_mpi_plugin(const void *mpi_comm);

// The MPI library that the plugin uses, or "none". Static.
const char *mpi_description() noexcept;

} // namespace annulus
