// SPDX-License-Identifier: Apache-2.0
#include "faults/child.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <system_error>

namespace annulus::test {
namespace {

// The last byte of a child's answer. If it is missing, the child ended too early.
constexpr char full_stop = '\0';

[[noreturn]] void answer(int pipe_end, const std::function<std::string()> &work) {
    std::string said;
    try {
        said = work();
    } catch (const std::exception &error) {
        said = error.what();
    }
    said += full_stop;
    const bool written = write(pipe_end, said.data(), said.size()) == static_cast<ssize_t>(said.size());
    _exit(written ? 0 : 1);
}

std::string read_all(int pipe_end) {
    std::string text;
    char buffer[4096];
    for (;;) {
        const ssize_t count = read(pipe_end, buffer, sizeof buffer);
        if (count > 0)
            text.append(buffer, static_cast<std::size_t>(count));
        else if (count == 0 || errno != EINTR)
            return text;
    }
}

// Returns how a child ended that had `seconds` seconds; "" after exit(0).
std::string end_of(pid_t child, unsigned seconds) {
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return "no answer within " + std::to_string(seconds) + " s";
    if (WIFSIGNALED(status))
        return std::string("ended by signal: ") + strsignal(WTERMSIG(status));
    return WEXITSTATUS(status) == 0 ? "" : "ended with exit status " + std::to_string(WEXITSTATUS(status));
}

pid_t fork_now() {
    std::fflush(nullptr); // otherwise the child would write it once more
    const pid_t child = fork();
    if (child < 0)
        throw std::system_error(errno, std::generic_category(), "fork");
    return child;
}

} // namespace

std::string in_child(const std::function<std::string()> &work, unsigned seconds) {
    int ends[2];
    if (pipe(ends) != 0)
        throw std::system_error(errno, std::generic_category(), "pipe");
    const pid_t child = fork_now();
    if (child == 0) {
        alarm(seconds); // ends the process even if its threads wait
        close(ends[0]);
        answer(ends[1], work);
    }
    close(ends[1]);
    std::string said = read_all(ends[0]);
    close(ends[0]);
    const std::string end = end_of(child, seconds);
    if (said.empty() || said.back() != full_stop)
        return end.empty() ? "ended without an answer" : end;
    said.pop_back();
    return said;
}

std::string in_child_that_exits(const std::function<void()> &work, unsigned seconds) {
    const pid_t child = fork_now();
    if (child != 0)
        return end_of(child, seconds);
    alarm(seconds);
    try {
        work();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        _exit(1);
    }
    std::exit(0);
}

} // namespace annulus::test
