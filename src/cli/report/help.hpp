// SPDX-License-Identifier: Apache-2.0
// The help of a command, for a terminal of 90 columns, and what to say of a word that a command does not know.
#pragma once

#include "cli/report/command_doc.hpp"

#include <string>

namespace annulus::cli {

std::string help_of(const CommandDoc &command);

// What is wrong with `word`, which the command was given, and what may have been meant.
std::string unknown_word(const CommandDoc &command, const std::string &word);

} // namespace annulus::cli
