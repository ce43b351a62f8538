// SPDX-License-Identifier: Apache-2.0
// The library's part for MPI, a plugin (engine/plugin.hpp): it alone is linked with an MPI library.
//
// An MPI_Comm does not show to which MPI library it belongs: it is an int in one library, a pointer in another. A
// process may have loaded several, since the plugin loads its own. MPI is therefore refused if the plugin's calls do
// not reach the library that it was linked with. A communicator is refused if MPI runs in another library.
#pragma once

#include "transport/transport.hpp"

#include <memory>

namespace annulus {

// The plugin's table of functions. Its one exported function, `const MpiPlugin *annulus_mpi_plugin()`, returns it.
struct MpiPlugin {
    const char *version; // version of annulus; the first member in all versions
    // PMPI_Initialized() as the plugin's calls find it. Profiling tools do not intercept that name.
    int (*initialized)(int *answer);
    std::unique_ptr<Transport> (*make_transport)(const void *mpi_comm);
    const char *(*library_version)() noexcept;
};

// As make_mpi_transport() (mpi/mpi_transport.hpp). Throws Error(ANNULUS_ERROR_UNSUPPORTED) if the plugin cannot
// be loaded, or if mpi_comm may belong to another MPI library.
std::unique_ptr<Transport> make_transport_of_mpi_plugin(const void *mpi_comm);

// Returns the name and version of the plugin's MPI library, or "none". The text is static.
const char *mpi_description() noexcept;

} // namespace annulus
