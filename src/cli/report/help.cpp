// SPDX-License-Identifier: Apache-2.0
#include "cli/report/help.hpp"

#include "cli/report/text.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace annulus::cli {

namespace {

constexpr std::size_t width = 90, indent = 28;

// Returns the words of `text` in lines that begin at column `start`. The text before the first line ends at column
// `column`.
std::string wrapped(std::string_view text, std::size_t column, std::size_t start) {
    return std::string(start - column, ' ') + joined(lines_of(text, width - start), "\n" + std::string(start, ' ')) +
           "\n";
}

std::string entry(const std::string &name, const std::string &description) {
    const std::string left = "  " + name;
    if (left.size() + 2 > indent)
        return left + "\n" + wrapped(description, 0, indent);
    return left + wrapped(description, left.size(), indent);
}

// Returns the edit distance of two words: letters inserted, removed or replaced, and neighbours swapped.
std::size_t distance(const std::string &a, const std::string &b) {
    std::vector<std::vector<std::size_t>> steps(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i)
        for (std::size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                steps[i][j] = i + j;
                continue;
            }
            steps[i][j] = std::min(
                {steps[i - 1][j] + 1, steps[i][j - 1] + 1, steps[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                steps[i][j] = std::min(steps[i][j], steps[i - 2][j - 2] + 1);
        }
    return steps[a.size()][b.size()];
}

// Returns a name that begins with `word`, or one that differs from it by one slip, or two slips if `word` is long.
// Returns an empty string if there is none. Leading hyphens do not count.
std::string nearest(const std::string &word, const std::vector<std::string> &names) {
    const auto letters_of = [](const std::string &name) {
        return name.substr(std::min(name.find_first_not_of('-'), name.size()));
    };
    const std::string letters = letters_of(word);
    const std::size_t max_slips = letters.size() > 4 ? 2 : letters.size() > 1 ? 1 : 0;
    std::pair<std::size_t, std::string> best{max_slips + 1, ""};
    for (const std::string &name : names) {
        const bool begins = letters.size() > 1 && letters_of(name).starts_with(letters);
        best = std::min(best, {begins ? 1 : distance(letters, letters_of(name)), name});
    }
    return best.second;
}

} // namespace

std::string help_of(const CommandDoc &doc) {
    std::string help = "Usage: " + doc.call + (doc.commands.empty() ? " OPTION..." : " COMMAND OPTION...") + "\n\n" +
                       wrapped(doc.description, 0, 0);
    if (!doc.commands.empty())
        help += "\nCommands, each with a --help of its own:\n";
    for (const CommandDoc &subcommand : doc.commands)
        help += entry(subcommand.name, subcommand.summary());
    for (const std::string &group : doc.groups()) {
        help += "\n" + group + ":\n";
        for (const OptionDoc &option : doc.options)
            if (option.group == group)
                help += entry(joined(option.names, ", ") + (option.value.empty() ? "" : " " + option.value),
                              option.description + (option.required ? " (required)" : ""));
    }
    if (!doc.example.empty()) {
        help += "\nExample:\n";
        for (const std::string_view line : split(doc.example, '\n'))
            help += "  " + std::string(line) + "\n";
    }
    return help;
}

std::string unknown_word(const CommandDoc &command, const std::string &word) {
    const bool is_option = word.starts_with('-'), is_command = !is_option && !command.commands.empty();
    const std::string name = is_option ? word.substr(0, word.find('=')) : word;
    const std::string meant = nearest(name, is_command ? names_of(command.commands) : names_of(command.options));
    const std::string what = is_option ? "unknown option " : is_command ? "unknown command " : "unexpected argument ";
    const std::string hint = !meant.empty() ? "did you mean " + meant + "?"
                             : is_command   ? "it has " + joined(names_of(command.commands), ", ")
                                            : "`" + command.call + " --help` says what it takes";
    return what + name + " of `" + command.call + "`; " + hint;
}

} // namespace annulus::cli
