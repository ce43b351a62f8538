// SPDX-License-Identifier: Apache-2.0
// Files as the options of a command.
#pragma once

#include "cli/report/cli11_forward.hpp"

#include <string>

namespace annulus::cli {

// A path that is no standard stream.
CLI::Option *add_file_option(CLI::App &command, const std::string &name, std::string &path, const std::string &help);

} // namespace annulus::cli
