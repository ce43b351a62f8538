// SPDX-License-Identifier: Apache-2.0
// Numbers as the options of a command.
#pragma once

#include <CLI/CLI.hpp>

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>

namespace annulus::cli {

// What is wrong with `text`, the value of an option, is thrown as Failure.
std::int64_t whole_number(const std::string &option, const std::string &text, std::int64_t lowest,
                          std::int64_t highest);
double real_number(const std::string &option, const std::string &text);

// An option that is a number in the range of its type, which `value` can be assigned.
template <class Number, class Value>
CLI::Option *add_number(CLI::App &command, const std::string &name, Value &value, const std::string &help) {
    const auto set = [&value, name](const std::string &text) {
        if constexpr (std::integral<Number>)
            value = static_cast<Number>(
                whole_number(name, text, std::numeric_limits<Number>::min(), std::numeric_limits<Number>::max()));
        else
            value = real_number(name, text);
    };
    return command.add_option_function<std::string>(name, set, help);
}

} // namespace annulus::cli
