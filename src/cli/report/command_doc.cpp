// SPDX-License-Identifier: Apache-2.0
#include "cli/report/command_doc.hpp"

#include "cli/report/text.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace annulus::cli {

namespace {

OptionDoc describe_option(const CLI::Option &option) {
    OptionDoc doc{
        {}, "", {}, option.get_required(), option.get_expected_max() > 1, option.get_description(), option.get_group()};
    for (const std::string &name : option.get_snames())
        doc.names.push_back("-" + name);
    for (const std::string &name : option.get_lnames())
        doc.names.push_back("--" + name);
    if (option.get_type_size() == 0)
        return doc;
    doc.value = option.get_type_name();
    // CLI11 appends the words of Option::one_of(), NAME:{one,other}, or of Option::suggests(), NAME:{one,...}.
    if (const std::size_t choices = doc.value.find(":{"); choices != std::string::npos && doc.value.ends_with('}')) {
        const std::string words = doc.value.substr(choices + 2, doc.value.size() - choices - 3);
        for (const std::string_view word : split(words, ','))
            doc.choices.emplace_back(word);
        if (doc.choices.back() == "...") {
            doc.choices.pop_back();
            doc.value.erase(choices);
        } else {
            doc.value = joined(doc.choices, "|");
        }
    }
    return doc;
}

} // namespace

std::string CommandDoc::summary() const {
    return description.substr(0, std::min({description.find(": "), description.find(". "), description.size() - 1}));
}

std::vector<std::string> CommandDoc::groups() const {
    std::vector<std::string> groups;
    for (const OptionDoc &option : options)
        if (std::ranges::find(groups, option.group) == groups.end())
            groups.push_back(option.group);
    return groups;
}

CommandDoc describe(const CLI::App &command) {
    CommandDoc doc{command.get_name(), command.get_name(), command.get_description(), command.get_footer(), {}, {}};
    for (const CLI::App *parent = command.get_parent(); parent; parent = parent->get_parent())
        doc.call = parent->get_name() + " " + doc.call;
    for (const CLI::Option *option : command.get_options())
        if (!option->get_group().empty())
            doc.options.push_back(describe_option(*option));
    for (const CLI::App *subcommand : command.get_subcommands({}))
        doc.commands.push_back(describe(*subcommand));
    return doc;
}

std::vector<std::string> names_of(const std::vector<OptionDoc> &options) {
    std::vector<std::string> names;
    for (const OptionDoc &option : options)
        names.insert(names.end(), option.names.begin(), option.names.end());
    return names;
}

std::vector<std::string> names_of(const std::vector<CommandDoc> &commands) {
    std::vector<std::string> names;
    for (const CommandDoc &command : commands)
        names.push_back(command.name);
    return names;
}

} // namespace annulus::cli
