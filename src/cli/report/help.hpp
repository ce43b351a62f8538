// SPDX-License-Identifier: Apache-2.0
// Writes the help of a command, for a terminal of 90 columns, and the message about an unknown word.
#pragma once

#include "cli/report/command_doc.hpp"

#include <string>

namespace annulus::cli {

std::string help_of(const CommandDoc &command);

// Returns a message that `word` is unknown to the command. The message names the most similar known word.
std::string unknown_word(const CommandDoc &command, const std::string &word);

} // namespace annulus::cli
