// SPDX-License-Identifier: Apache-2.0
// The manual page of the program, and what shells complete: made of its own options, so that none is missing.
#pragma once

#include "cli/report/command_doc.hpp"

#include <string>

namespace annulus::cli {

// annulus(1), for groff and mandoc.
std::string man_page(const CommandDoc &program);

std::string bash_completion(const CommandDoc &program);
std::string zsh_completion(const CommandDoc &program);

} // namespace annulus::cli
