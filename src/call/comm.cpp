// SPDX-License-Identifier: Apache-2.0
#include "call/comm.hpp"

#include "core/error.hpp"

namespace annulus {

void check_process(const char *name, const annulus_comm &comm) {
    if (comm.process != getpid())
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "%s was made by process %d, which this one was forked from; here it can only be destroyed", name,
                    static_cast<int>(comm.process));
}

} // namespace annulus
