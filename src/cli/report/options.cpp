// SPDX-License-Identifier: Apache-2.0
#include "cli/report/options.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace annulus::cli {

Option Option::required(bool required) const {
    return Option(option_->required(required));
}

Option Option::value(const std::string &name) const {
    return Option(option_->type_name(name));
}

Option Option::group(const std::string &name) const {
    return Option(option_->group(name));
}

Option Option::one_of(const std::vector<std::string> &words) const {
    const auto check = [words, name = option_->get_name()](const std::string &given) {
        if (std::ranges::find(words, given) == words.end())
            throw bad_input(name + " " + (given.empty() ? "''" : given) + ": must be " +
                            joined({words.begin(), words.end() - 1}, ", ") + " or " + words.back());
        return std::string();
    };
    return Option(option_->check(CLI::Validator(check, "{" + joined(words, ",") + "}")));
}

Option Option::suggests(const std::vector<std::string> &words) const {
    const auto accept = [](const std::string &) { return std::string(); };
    return Option(option_->check(CLI::Validator(accept, "{" + joined(words, ",") + ",...}")));
}

Option Option::aliases(const std::map<std::string, std::string> &values) const {
    return Option(option_->transform(CLI::Transformer(values).description("")));
}

Option Option::ends_in(const std::string &ending) const {
    const auto check = [ending](const std::string &given) {
        return given.ends_with(ending) ? "" : "'" + given + "': the name must end in " + ending + ", which is written";
    };
    return Option(option_->check(check));
}

Command::Command(CLI::App &program, const std::string &name, const std::string &description)
    : command_(*program.add_subcommand(name, description)) {}

Option Command::flag(const std::string &name, bool &given, const std::string &help) {
    return Option(command_.add_flag(name, given, help));
}

Option Command::text(const std::string &name, std::string &text, const std::string &help) {
    const auto check = [](const std::string &given) {
        return given.empty() ? "the text is empty; leave the option out where there is none" : "";
    };
    return Option(command_.add_option(name, text, help)->check(check));
}

Option Command::texts(const std::string &name, std::vector<std::string> &texts, const std::string &help) {
    return Option(command_.add_option(name, texts, help)->allow_extra_args(false));
}

Option Command::file(const std::string &name, std::string &path, const std::string &help) {
    const auto check = [](const std::string &given) {
        return given.empty()  ? "the path is empty"
               : given == "-" ? "'-' for standard input or output is not supported; give a file, one named - as ./-"
                              : "";
    };
    return Option(command_.add_option(name, path, help)->check(check)->type_name("FILE"));
}

Option Command::parsed(const std::string &name, const std::function<void(const std::string &)> &parse,
                       const std::string &help) {
    return Option(command_.add_option_function<std::string>(name, parse, help));
}

void Command::example(const std::string &lines) {
    command_.footer(lines);
}

void Command::runs(const std::function<void()> &work) {
    command_.callback(work);
}

} // namespace annulus::cli
