// SPDX-License-Identifier: Apache-2.0
// Measures how long ranks take to agree, and how fast the links between them are, by calls in which ranks exchange rows
// in pairs.
#pragma once

#include "cli/commands/links.hpp"
#include "cli/devices/memory.hpp"
#include "cli/ranks/ranks.hpp"

namespace annulus::cli {

// Each rank calls this with its own memory; the result is the same on all ranks. Throws Failure if the times vary too
// much to tell a rate.
Links measure_links(const Rank &rank, Memory &memory, int repeats);

} // namespace annulus::cli
