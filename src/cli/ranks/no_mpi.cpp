// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/mpi_ranks.hpp"

#include "cli/ranks/mpi_place.hpp"
#include "cli/report/failure.hpp"

namespace annulus::cli {

std::unique_ptr<Ranks> make_mpi_ranks(const RankOptions &, const ExecutionOptions &) {
    throw bad_input("mpirun started " + std::to_string(mpi_place().count) +
                    " processes, and this program was built without MPI");
}

} // namespace annulus::cli
