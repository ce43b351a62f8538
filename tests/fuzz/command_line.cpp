// SPDX-License-Identifier: Apache-2.0
// Command lines of the program. The input is its words, one a line. Commands that would compute for long, or access
// files that the input names, are only parsed. `plan` runs, with one rank and without a picture.
#include "fuzz/input.hpp"

#include "cli/commands/commands.hpp"

#include <CLI/CLI.hpp>
#include <sanitizer/common_interface_defs.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::cli {

namespace {

std::vector<std::string> words; // words of the input

bool has_word(std::string_view beginning) {
    return std::ranges::any_of(words, [&](const std::string &word) { return word.starts_with(beginning); });
}

// Making a command takes longer than running it. Only the first command that a word names is made, which gets the words
// after it. If no word names a command, `plan` is made, or all commands if a word asks for help or for what --generate
// prints.
bool is_asked_for(std::string_view name) {
    constexpr std::string_view names[] = {"attend", "map", "plan", "bench"};
    for (const std::string &word : words)
        for (const std::string_view named : names)
            if (word.starts_with(named))
                return named == name;
    return name == "plan" || has_word("--generate") || has_word("--help");
}

template <void (*add)(CLI::App &)> void add_harmless(CLI::App &program, const char *name, bool is_done) {
    if (!is_asked_for(name))
        return;
    add(program);
    if (!is_done)
        program.get_subcommand(name)->parse_complete_callback([] { throw CLI::Success(); });
}

void add_harmless_attend(CLI::App &program) {
    add_harmless<add_attend_command>(program, "attend", false);
}
void add_harmless_map(CLI::App &program) {
    add_harmless<add_map_command>(program, "map", false);
}
void add_harmless_plan(CLI::App &program) {
    add_harmless<add_plan_command>(program, "plan", !has_word("--ranks") && !has_word("--svg"));
}
void add_harmless_bench(CLI::App &program) {
    add_harmless<add_bench_command>(program, "bench", false);
}

} // namespace

} // namespace annulus::cli

// Includes the program's own main() and parsing, with the commands above.
#define add_attend_command add_harmless_attend
#define add_map_command add_harmless_map
#define add_plan_command add_harmless_plan
#define add_bench_command add_harmless_bench
#define main program_main
#include "cli/main.cpp"
#undef main

namespace {

// Discards what the program prints. Its errors go into this file and must be one line.
const int errors = memfd_create("errors", MFD_CLOEXEC);

std::string said() {
    std::string text(1 << 14, '\0');
    const ssize_t bytes = pread(errors, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    return text;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    std::vector<std::string> &words = annulus::cli::words;
    words = {"annulus"};
    for (const std::string_view word : annulus::cli::split({reinterpret_cast<const char *>(data), size}, '\n'))
        words.emplace_back(word.substr(0, word.find('\0')));
    std::vector<char *> arguments;
    for (std::string &word : words)
        arguments.push_back(word.data());
    arguments.push_back(nullptr);

    std::fflush(stdout);
    std::fflush(stderr);
    static const int kept_out = dup(STDOUT_FILENO), kept_error = dup(STDERR_FILENO);
    static const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    EXPECT(errors >= 0 && nowhere >= 0 && ftruncate(errors, 0) == 0 && lseek(errors, 0, SEEK_SET) == 0, "no file");
    __sanitizer_set_report_fd(reinterpret_cast<void *>(static_cast<std::intptr_t>(kept_error)));
    dup2(nowhere, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    const int exit_code = program_main(static_cast<int>(words.size()), arguments.data());
    std::fflush(stdout);
    std::fflush(stderr);
    dup2(kept_out, STDOUT_FILENO);
    dup2(kept_error, STDERR_FILENO);
    const std::string text = said();
    // Nothing here needs a disk or much memory, but a workspace limit may be too low.
    const bool is_limit = exit_code == annulus::cli::exit_failed && text.find("workspace limit is ") != text.npos;
    EXPECT(exit_code == 0 || exit_code == annulus::cli::exit_bad_input || is_limit, "exit code %d: %s", exit_code,
           text.c_str());
    EXPECT((exit_code == 0) == text.empty(), "exit code %d: '%s'", exit_code, text.c_str());
    EXPECT(text.empty() || text.starts_with("annulus: "), "%s", text.c_str());
    words = {}; // words that remain from run to run would look like a leak and take time to check
    EXPECT(text.size() >= 1 << 14 || text.find('\n') + 1 == text.size() || text.empty(), "%s", text.c_str());
    return 0;
}
