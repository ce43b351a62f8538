// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/mpi_place.hpp"

#include "cli/ranks/ranks.hpp"
#include "cli/report/text.hpp"

#include <cstdlib>
#include <optional>
#include <utility>

namespace annulus::cli {

namespace {

std::optional<int> number_in_environment(const char *name) {
    const char *text = std::getenv(name);
    const std::optional<std::int64_t> number = text ? parse_integer(text) : std::nullopt;
    return number && *number >= 0 && *number <= max_ranks ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

} // namespace

MpiPlace mpi_place() {
    for (const auto &[size, rank] : {std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
                                     std::pair("PMI_SIZE", "PMI_RANK")}) // Open MPI; MPICH and its descendants
        if (const std::optional<int> count = number_in_environment(size); count && *count > 1)
            return {*count, number_in_environment(rank).value_or(0)};
    return {};
}

} // namespace annulus::cli
