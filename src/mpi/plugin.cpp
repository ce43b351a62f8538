// SPDX-License-Identifier: Apache-2.0
// The plugin's table and its one exported function (transport/mpi_plugin.hpp).
#include "core/version.hpp"
#include "mpi/mpi_transport.hpp"
#include "transport/mpi_plugin.hpp"

#include <mpi.h>

namespace annulus {

namespace {

const MpiPlugin plugin{version_text, &PMPI_Initialized,
                       [](const void *mpi_comm) { return make_mpi_transport(mpi_comm); }, mpi_library_version};

} // namespace

} // namespace annulus

extern "C" __attribute__((visibility("default"))) const annulus::MpiPlugin *annulus_mpi_plugin() {
    return &annulus::plugin;
}
