// SPDX-License-Identifier: Apache-2.0
// A command of the program and its options, built on CLI11.
#pragma once

#include "cli/report/cli11_forward.hpp"
#include "cli/report/number_option.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// Describes an option of a command further.
class Option {
  public:
    explicit Option(CLI::Option *option) : option_(option) {}

    Option required(bool required) const;
    // Set the name of the value in the help, and the heading above the option. An option of group "" is hidden.
    Option value(const std::string &name) const;
    Option group(const std::string &name) const;
    // Allows only the given values.
    Option one_of(const std::vector<std::string> &words) const;
    // Lets shells complete the given values or beginnings of values. Other values stay valid.
    Option suggests(const std::vector<std::string> &words) const;
    // Adds other words for values.
    Option aliases(const std::map<std::string, std::string> &values) const;
    // Requires that the value, a file's name, ends in `ending`.
    Option ends_in(const std::string &ending) const;

  private:
    CLI::Option *option_;
};

class Command {
  public:
    // Adds a command to the program.
    Command(CLI::App &program, const std::string &name, const std::string &description);
    // Describes the program itself, or a command that it has.
    explicit Command(CLI::App &command) : command_(command) {}

    // Each of the following functions adds an option and assigns its value. A list grows by one value each time that
    // the option is given.
    Option flag(const std::string &name, bool &given, const std::string &help);
    // A text or a path must not be empty. An empty variable of a shell is then an error and not an option that was left
    // out.
    Option text(const std::string &name, std::string &text, const std::string &help);
    Option texts(const std::string &name, std::vector<std::string> &texts, const std::string &help);
    // The path of a file. "-" for a standard stream is an error.
    Option file(const std::string &name, std::string &path, const std::string &help);
    // A whole number from `lowest` to `highest`. Number must convert to Value.
    template <std::integral Number, class Value>
    Option number(const std::string &name, Value &value, Number lowest, const std::string &help,
                  Number highest = std::numeric_limits<Number>::max()) {
        const auto set = [&value, name, lowest, highest](const std::string &text) {
            value = static_cast<Number>(whole_number(name, text, lowest, highest));
        };
        return parsed(name, set, help);
    }
    Option number(const std::string &name, std::optional<double> &value, const std::string &help) {
        return parsed(
            name, [&value, name](const std::string &text) { value = real_number(name, text); }, help);
    }
    // A text that parse() reads. It throws Failure if the text is wrong.
    Option parsed(const std::string &name, const std::function<void(const std::string &)> &parse,
                  const std::string &help);

    // Sets the lines of a shell below the help.
    void example(const std::string &lines);
    // Sets what the command does when all options are read.
    void runs(const std::function<void()> &work);

  private:
    CLI::App &command_;
};

} // namespace annulus::cli
