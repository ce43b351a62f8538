// SPDX-License-Identifier: Apache-2.0
// The annulus program. Exit codes: 0: done; 1: failed (memory, disk); 2: bad options or files; 128 + n: ended by signal
// n.
#include "cli/commands/commands.hpp"
#include "cli/ranks/mpi_place.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/help.hpp"
#include "cli/report/manual.hpp"
#include "cli/report/options.hpp"
#include "cli/report/text.hpp"

#include <annulus/annulus.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace annulus::cli {

namespace {

// Prints the message and returns the exit code. All processes of mpirun fail together, and only rank 0 prints.
int report(int exit_code, const std::string &message) {
    if (mpi_place().rank == 0)
        std::fputs(error_line(message).c_str(), stderr);
    return exit_code;
}

// Returns what is wrong with the count or the value of an option. Returns an empty string if that is not the error.
std::string complaint(const CLI::App &command, const CLI::ArgumentMismatch &error) {
    const std::string message = error.what(); // begins with the name of the option
    for (const OptionDoc &doc : describe(command).options)
        for (const std::string &name : doc.names)
            if (message.starts_with(name + ": ")) {
                const CLI::Option &option = *command.get_option(name);
                if (static_cast<int>(option.results().size()) > option.get_items_expected_max())
                    return name + " is given " + std::to_string(option.results().size()) +
                           " times; it must be given once";
                return name + ": its value, " + doc.value + ", is missing";
            }
    return "";
}

// Returns what is wrong with the command line. An unknown word comes before a missing option, since the word may be
// that option, misspelt.
std::string complaint(const CLI::App &program, const CLI::ParseError &error) {
    std::vector<const CLI::App *> given{&program};
    for (const CLI::App *command : program.get_subcommands())
        given.push_back(command);
    if (dynamic_cast<const CLI::RequiredError *>(&error) || dynamic_cast<const CLI::ExtrasError *>(&error)) {
        for (const CLI::App *command : given)
            if (const std::vector<std::string> unknown = command->remaining(); !unknown.empty())
                return unknown_word(describe(*command), unknown.front());
        if (given.size() == 1)
            return "a command is missing; `annulus` has " + joined(names_of(describe(program).commands), ", ");
    }
    if (const auto *mismatch = dynamic_cast<const CLI::ArgumentMismatch *>(&error))
        for (const CLI::App *command : given)
            if (std::string message = complaint(*command, *mismatch); !message.empty())
                return message;
    return error.what();
}

class HelpFormatter final : public CLI::FormatterBase {
  public:
    std::string make_help(const CLI::App *command, std::string, CLI::AppFormatMode) const override {
        return help_of(describe(*command));
    }
};

void run(CLI::App &program, int argc, char **argv) {
    program.formatter(std::make_shared<HelpFormatter>());
    program.set_version_flag("--version", std::string("annulus ") + annulus_version_string());
    program.require_subcommand(1);
    const auto generate = [&program](const std::string &kind) {
        const CommandDoc doc = describe(program);
        std::string text = kind == "man" ? man_page(doc) : kind == "bash" ? bash_completion(doc) : zsh_completion(doc);
        text.pop_back(); // CLI11 adds the last newline itself
        throw CLI::CallForVersion(text, 0);
    };
    Command(program).parsed("--generate", generate, "").one_of({"man", "bash", "zsh"}).group(""); // for the build
    add_attend_command(program);
    add_map_command(program);
    add_plan_command(program);
    add_bench_command(program);
    add_info_command(program);
    program.parse(argc, argv);
}

int run_and_report(int argc, char **argv) {
    CLI::App program(
        "Dilated attention over sequences of any length. Whole numbers may have a unit, as in 1M or 64Ki: k, M, G, "
        "which is also B, or T (powers of 1000), Ki, Mi, Gi or Ti (of 1024); or a power of 10, as in 1e6.",
        "annulus");
    try {
        run(program, argc, argv);
    } catch (const CLI::Success &request) { // --help, --version
        program.exit(request);
    } catch (const CLI::ParseError &error) {
        return report(exit_bad_input, complaint(program, error));
    } catch (const Failure &failure) {
        return report(failure.exit_code(), failure.what());
    } catch (const std::bad_alloc &) {
        return report(exit_failed, "out of memory");
    } catch (const std::exception &error) {
        return report(exit_failed, error.what());
    }
    if (std::fflush(stdout) != 0)
        return report(exit_failed, std::string("cannot write to standard output: ") + std::strerror(errno));
    return 0;
}

} // namespace

} // namespace annulus::cli

int main(int argc, char **argv) {
    try {
        return annulus::cli::run_and_report(argc, argv);
    } catch (...) { // no memory for a message of our own
        std::fputs("annulus: out of memory\n", stderr);
        return annulus::cli::exit_failed;
    }
}
