// SPDX-License-Identifier: Apache-2.0
// Writes the program's manual page and the completions of shells. Both come from the options themselves, so that no
// option is missing.
#pragma once

#include "cli/report/command_doc.hpp"

#include <string>

namespace annulus::cli {

// Returns annulus(1), for groff and mandoc.
std::string man_page(const CommandDoc &program);

std::string bash_completion(const CommandDoc &program);
std::string zsh_completion(const CommandDoc &program);

} // namespace annulus::cli
