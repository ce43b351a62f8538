// SPDX-License-Identifier: Apache-2.0
// Describes a command and its options, for its help, the manual page and the completions of shells.
#pragma once

#include "cli/report/cli11_forward.hpp"

#include <string>
#include <vector>

namespace annulus::cli {

struct OptionDoc {
    std::vector<std::string> names;   // --tokens; -h, --help
    std::string value;                // N, or text|markdown|json; empty: no value
    std::vector<std::string> choices; // all values, or some that shells complete
    bool required, repeatable;
    std::string description;
    std::string group;
};

struct CommandDoc {
    std::string name; // attend
    std::string call; // annulus attend
    std::string description;
    std::string example; // lines of a shell; may be empty
    std::vector<OptionDoc> options;
    std::vector<CommandDoc> commands;

    // Returns the description up to the first colon or the end of the first sentence.
    std::string summary() const;
    // Returns the groups of the options, in the order of their first options.
    std::vector<std::string> groups() const;
};

// Describes a command of CLI11. Its footer is the example. Options in a group without a name are hidden and left out.
CommandDoc describe(const CLI::App &command);

// Return all names of the options, or of the commands.
std::vector<std::string> names_of(const std::vector<OptionDoc> &options);
std::vector<std::string> names_of(const std::vector<CommandDoc> &commands);

} // namespace annulus::cli
