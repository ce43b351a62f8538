// SPDX-License-Identifier: Apache-2.0
#include "cli/report/manual.hpp"

#include "cli/report/text.hpp"

namespace annulus::cli {

namespace {

constexpr const char *bash_head = R"(# SPDX-License-Identifier: Apache-2.0
# bash completion of annulus, made by the program itself
_annulus() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command= i
    for ((i = 1; i < COMP_CWORD; ++i)); do
        case ${COMP_WORDS[i]} in
)";

constexpr const char *bash_tail = R"(    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    [[ ${COMPREPLY[*]} != *: ]] || compopt -o nospace 2>/dev/null
}
complete -F _annulus annulus
)";

constexpr const char *zsh_head = R"(#compdef annulus
# SPDX-License-Identifier: Apache-2.0
# zsh completion of annulus, made by the program itself
_annulus() {
    local context state state_descr line
    typeset -A opt_args
    _arguments -C \
)";

bool takes_file(const OptionDoc &option) {
    return option.value.starts_with("FILE");
}

// Returns the cases of bash's script that complete the values of a command's options.
std::string bash_values(const CommandDoc &command) {
    std::string cases;
    std::vector<std::string> files, free;
    for (const OptionDoc &option : command.options)
        for (const std::string &name : option.names) {
            const std::string pattern = command.name + "," + name;
            if (takes_file(option))
                files.push_back(pattern);
            else if (!option.choices.empty())
                cases += "        " + pattern + ") words='" + joined(option.choices, " ") + "' ;;\n";
            else if (!option.value.empty())
                free.push_back(pattern);
        }
    if (!files.empty())
        cases += "        " + joined(files, " | ") +
                 ")\n            compopt -o filenames 2>/dev/null\n"
                 "            mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n            return ;;\n";
    if (!free.empty())
        cases += "        " + joined(free, " | ") + ") COMPREPLY=(); return ;;\n";
    return cases;
}

std::string zsh_quoted(const std::string &text) {
    std::string result;
    for (const char c : text) {
        if (c == '\'')
            result += "'\\''";
        else if (c == '[' || c == ']' || c == ':' || c == '\\')
            result.append(1, '\\').append(1, c);
        else
            result += c;
    }
    return result;
}

std::string zsh_options(const CommandDoc &command, const std::string &indent) {
    std::string specs;
    for (const OptionDoc &option : command.options)
        for (const std::string &name : option.names) {
            specs += indent + "'" + (option.repeatable ? "*" : "") + name + "[" + zsh_quoted(option.description) + "]";
            if (!option.value.empty())
                specs += ":" + zsh_quoted(option.value) + ":" +
                         (takes_file(option)       ? "_files"
                          : option.choices.empty() ? " "
                                                   : "(" + zsh_quoted(joined(option.choices, " ")) + ")");
            specs += "' \\\n";
        }
    return specs;
}

} // namespace

std::string bash_completion(const CommandDoc &program) {
    std::string script = std::string(bash_head) + "        " + joined(names_of(program.commands), " | ") +
                         ") command=${COMP_WORDS[i]} && break ;;\n        esac\n    done\n"
                         "    local words\n    case $command in\n";
    for (const CommandDoc &command : program.commands)
        script += "    " + command.name + ") words='" + joined(names_of(command.options), " ") + "' ;;\n";
    script += "    *) words='" + joined(names_of(program.commands), " ") + " " +
              joined(names_of(program.options), " ") + "' ;;\n    esac\n    case $command,$before in\n";
    for (const CommandDoc &command : program.commands)
        script += bash_values(command);
    return script + bash_tail;
}

std::string zsh_completion(const CommandDoc &program) {
    std::string script = zsh_head + zsh_options(program, "        ") + "        '1:command:((";
    for (const CommandDoc &command : program.commands)
        script += command.name + "\\:\"" + zsh_quoted(command.summary()) + "\" ";
    script += "))' \\\n        '*::argument:->arguments'\n    case $line[1] in\n";
    for (const CommandDoc &command : program.commands)
        script += "    " + command.name + ")\n        _arguments \\\n" + zsh_options(command, "            ") +
                  "            ;;\n";
    return script + "    esac\n}\n_annulus \"$@\"\n";
}

} // namespace annulus::cli
