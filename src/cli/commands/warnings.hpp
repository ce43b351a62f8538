// SPDX-License-Identifier: Apache-2.0
// Warnings on standard error about input that is valid but probably a mistake.
#pragma once

#include "cli/commands/attend_arrays.hpp"
#include "cli/commands/pattern_options.hpp"

#include <string>

namespace annulus::cli {

// Prints "annulus: warning: " and the message on one line. Only one rank may call it.
void warn(const std::string &message);

// Warns if the arrays seem to be [B, H, N, D], if rows are in no sequence, or if heads attend to no key.
void warn_of_inputs(const Inputs &inputs, const PatternOptions &pattern);

} // namespace annulus::cli
