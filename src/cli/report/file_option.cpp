// SPDX-License-Identifier: Apache-2.0
#include "cli/report/file_option.hpp"

#include <CLI/CLI.hpp>

namespace annulus::cli {

CLI::Option *add_file_option(CLI::App &command, const std::string &name, std::string &path, const std::string &help) {
    const auto check = [](const std::string &given) {
        return given == "-" ? "'-' for standard input or output is not supported; give a file, one named - as ./-" : "";
    };
    return command.add_option(name, path, help)->check(check)->type_name("FILE");
}

} // namespace annulus::cli
