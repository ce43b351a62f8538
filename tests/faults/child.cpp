// SPDX-License-Identifier: Apache-2.0
#include "faults/child.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <system_error>

namespace annulus::test {
namespace {

// The last byte of a child's answer: without it the child ended too early.
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

} // namespace

std::string in_child(const std::function<std::string()> &work, unsigned seconds) {
    int ends[2];
    if (pipe(ends) != 0)
        throw std::system_error(errno, std::generic_category(), "pipe");
    const pid_t child = fork();
    if (child < 0)
        throw std::system_error(errno, std::generic_category(), "fork");
    if (child == 0) {
        alarm(seconds); // ends the process, whatever its threads wait for
        close(ends[0]);
        answer(ends[1], work);
    }
    close(ends[1]);
    std::string said = read_all(ends[0]);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!said.empty() && said.back() == full_stop) {
        said.pop_back();
        return said;
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return "no answer within " + std::to_string(seconds) + " s";
    if (WIFSIGNALED(status))
        return std::string("ended by signal: ") + strsignal(WTERMSIG(status));
    return "ended with exit status " + std::to_string(WEXITSTATUS(status));
}

} // namespace annulus::test
