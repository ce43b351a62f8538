// SPDX-License-Identifier: Apache-2.0
// A command of the program and its options, by CLI11.
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

// More about an option that a command has.
class Option {
  public:
    explicit Option(CLI::Option *option) : option_(option) {}

    Option required(bool required) const;
    // What help calls its value, and the heading that it stands under there; an option of group "" is hidden.
    Option value(const std::string &name) const;
    Option group(const std::string &name) const;
    // The values that it may have.
    Option one_of(const std::vector<std::string> &words) const;
    // Values, or beginnings of values, that are completed; it may have others.
    Option suggests(const std::vector<std::string> &words) const;
    // Other words for values.
    Option aliases(const std::map<std::string, std::string> &values) const;
    // How its value ends, the name of a file.
    Option ends_in(const std::string &ending) const;

  private:
    CLI::Option *option_;
};

class Command {
  public:
    // Adds itself to the program.
    Command(CLI::App &program, const std::string &name, const std::string &description);
    // The program itself, or a command that it has.
    explicit Command(CLI::App &command) : command_(command) {}

    // Each assigns what is given; a list grows by one each time that the option is.
    Option flag(const std::string &name, bool &given, const std::string &help);
    // Neither a text nor a path may be empty: an empty variable of a shell is not an option that was left out.
    Option text(const std::string &name, std::string &text, const std::string &help);
    Option texts(const std::string &name, std::vector<std::string> &texts, const std::string &help);
    // A path that is no standard stream.
    Option file(const std::string &name, std::string &path, const std::string &help);
    // A whole number from `lowest` to `highest`, which `value` can be assigned.
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
    // What parse() makes of the text, or throws as Failure.
    Option parsed(const std::string &name, const std::function<void(const std::string &)> &parse,
                  const std::string &help);

    // Lines of a shell below the help.
    void example(const std::string &lines);
    // What is done once all options are there.
    void runs(const std::function<void()> &work);

  private:
    CLI::App &command_;
};

} // namespace annulus::cli
