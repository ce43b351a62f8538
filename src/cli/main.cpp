// SPDX-License-Identifier: Apache-2.0
// The annulus program. Exit codes: 0 done, 1 failed (memory, disk), 2 bad options or files, 128 + n ended by signal n.
#include "commands.hpp"
#include "handles.hpp"
#include "mpi_ranks.hpp"

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

namespace annulus::cli {

namespace {

// An error is one line, whatever its text is made of. Processes that mpirun started fail together, and one says why.
int report(int exit_code, std::string message) {
    if (mpi_place().rank != 0)
        return exit_code;
    while (!message.empty() && message.back() == '\n')
        message.pop_back();
    for (std::size_t i = message.find('\n'); i != std::string::npos; i = message.find('\n', i))
        message.replace(i, 1, "; ");
    std::fprintf(stderr, "annulus: %s\n", message.c_str());
    return exit_code;
}

void run(CLI::App &program, int argc, char **argv) {
    program.set_version_flag("--version", std::string("annulus ") + annulus_version_string());
    program.require_subcommand(1);
    add_attend_command(program);
    add_plan_command(program);
    add_bench_command(program);
    add_info_command(program);
    program.parse(argc, argv);
}

int run_and_report(int argc, char **argv) {
    CLI::App program("Dilated attention over sequences of any length.", "annulus");
    try {
        run(program, argc, argv);
    } catch (const CLI::Success &request) { // --help, --version
        program.exit(request);
    } catch (const CLI::ParseError &error) {
        return report(exit_bad_input, error.what());
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
    } catch (...) { // not even memory for a message of our own
        std::fputs("annulus: out of memory\n", stderr);
        return annulus::cli::exit_failed;
    }
}
