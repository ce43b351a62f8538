// SPDX-License-Identifier: Apache-2.0
// What is computed as it was asked for, and is probably not meant: one line on standard error.
#pragma once

#include "cli/commands/attend_arrays.hpp"
#include "cli/commands/pattern_options.hpp"

#include <string>

namespace annulus::cli {

// Prints "annulus: warning: " and the message. One rank calls it.
void warn(const std::string &message);

// Warns where the arrays seem to be [B, H, N, D], rows are in no sequence, or heads attend to no key.
void warn_of_inputs(const Inputs &inputs, const PatternOptions &pattern);

} // namespace annulus::cli
