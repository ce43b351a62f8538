// SPDX-License-Identifier: Apache-2.0
// What a command takes, as its help, its manual page and the completions of shells tell it.
#pragma once

#include "cli/report/cli11_forward.hpp"

#include <string>
#include <vector>

namespace annulus::cli {

struct OptionDoc {
    std::vector<std::string> names;   // --tokens; -h, --help
    std::string value;                // N, or text|markdown|json; empty: it has none
    std::vector<std::string> choices; // all values, or some that are completed
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

    // The description up to the first colon, or the end of its first sentence.
    std::string summary() const;
    // The groups of the options, in the order of their first ones.
    std::vector<std::string> groups() const;
};

// An option in a group without a name is hidden, and left out. The footer is the example.
CommandDoc describe(const CLI::App &command);

// All names of the options, or of the commands.
std::vector<std::string> names_of(const std::vector<OptionDoc> &options);
std::vector<std::string> names_of(const std::vector<CommandDoc> &commands);

} // namespace annulus::cli
