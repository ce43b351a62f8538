// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"
#include "transport/mpi_transport.hpp"

namespace annulus {

std::unique_ptr<Transport> make_mpi_transport(const void *, std::size_t) {
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no MPI: this annulus was built without it");
}

const char *mpi_description() noexcept {
    return "none";
}

} // namespace annulus
