// SPDX-License-Identifier: Apache-2.0
#include "cli/report/manual.hpp"

#include "cli/report/text.hpp"

#include <annulus/version.h>

#include <string_view>

namespace annulus::cli {

namespace {

constexpr const char *before_commands = R"(.SH DESCRIPTION
A branch
.I W\fB:\fIR
of dilated attention cuts a sequence into segments of
.I W
positions
.RB ( 0 :
the whole sequence) and keeps every
.IR R -th
position of each.
A query attends to the union of what its branches keep, by one softmax.
.PP
Whole numbers may have a unit: k, M, G or T, powers of 1000, or Ki, Mi, Gi or Ti, powers of 1024.
)";

constexpr const char *after_commands = R"(.SH FILES
An output appears under its name once it is complete, and replaces an older file of that name; until then it is a file
without a name in the same directory, or where the file system has none such,
.BR .annulus\-* .
A job that fails or is ended leaves nothing.
Inputs are read in place: one that is changed or cut short meanwhile ends the job with an error.
The name
.B \-
does not stand for standard input or output.
.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
Failed, for want of memory or disk space.
.TP
.B 2
Bad options or files, or an input that was changed while it was read.
.TP
128 + \fIn\fR
Ended by signal
.IR n .
)";

std::string escaped(std::string_view text) {
    std::string result = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
    for (const char c : text) {
        if (c == '\\')
            result += "\\e";
        else if (c == '-')
            result += "\\-";
        else
            result += c;
    }
    return result;
}

std::string value_of(const OptionDoc &option) {
    return option.value.empty() ? "" : " \\fI" + escaped(option.value) + "\\fR";
}

std::string entry(const OptionDoc &option) {
    std::vector<std::string> names;
    for (const std::string &name : option.names)
        names.push_back("\\fB" + escaped(name) + "\\fR");
    return ".TP\n" + joined(names, ", ") + value_of(option) + "\n" + escaped(option.description) +
           (option.required ? " (required)" : "") + "\n";
}

std::string synopsis(const CommandDoc &command) {
    std::string line = "\\fB" + escaped(command.call) + "\\fR";
    for (const OptionDoc &option : command.options)
        if (option.required)
            line += " \\fB" + escaped(option.names.front()) + "\\fR" + value_of(option);
    return line + " [\\fIoption\\fR...]\n";
}

} // namespace

std::string man_page(const CommandDoc &program) {
    std::string page = std::string(R"(.\" SPDX-License-Identifier: Apache-2.0)") + "\n.TH ANNULUS 1 \"\" \"annulus " +
                       annulus_version_string() + "\" \"User Commands\"\n.SH NAME\n" +
                       "annulus \\- dilated attention over sequences of any length\n.SH SYNOPSIS\n";
    for (const CommandDoc &command : program.commands)
        page += synopsis(command) + ".br\n";
    page += "\\fBannulus\\fR [\\fIcommand\\fR] \\fB\\-\\-help\\fR\n.br\n\\fBannulus \\-\\-version\\fR\n";
    page += before_commands;
    page += ".SH OPTIONS\n";
    for (const OptionDoc &option : program.options)
        page += entry(option);
    for (const CommandDoc &command : program.commands) {
        page += ".SH \"" + escaped(command.call) + "\"\n" + escaped(command.description) + "\n";
        for (const std::string &group : command.groups()) {
            page += ".SS " + escaped(group) + "\n";
            for (const OptionDoc &option : command.options)
                if (option.group == group)
                    page += entry(option);
        }
    }
    page += after_commands;
    page += ".SH EXAMPLES\n";
    for (const CommandDoc &command : program.commands)
        page += ".EX\n" + escaped(command.example) + "\n.EE\n";
    return page;
}

} // namespace annulus::cli
