// SPDX-License-Identifier: Apache-2.0
#include "cli/arrays/sudden_end.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/progress.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace annulus::cli {

namespace {

// Keeps pointers to objects for a signal handler.
template <class T, std::size_t count> class Register {
  public:
    void add(const T *object) {
        for (std::atomic<const T *> &place : places_)
            if (const T *none = nullptr; place.compare_exchange_strong(none, object))
                return;
        throw std::logic_error("more files than places for them");
    }
    void remove(const T *object) {
        for (std::atomic<const T *> &place : places_)
            if (const T *own = object; place.compare_exchange_strong(own, nullptr))
                return;
    }
    template <class Visitor> void for_each(const Visitor &visitor) const {
        for (const std::atomic<const T *> &place : places_)
            if (const T *object = place)
                visitor(*object);
    }

  private:
    // A handler must not wait for the thread that it interrupted.
    static_assert(std::atomic<const T *>::is_always_lock_free);
    std::array<std::atomic<const T *>, count> places_{};
};

Register<TemporaryName, 2> names; // for outputs
Register<Mapping, 5> mappings;    // for inputs and outputs

// After a request to end, the program exits with a code. After any other signal it ends as it would without a handler.
constexpr int requests[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int crashes[] = {SIGBUS,  SIGSEGV, SIGABRT, SIGILL,  SIGFPE, SIGQUIT,
                           SIGPIPE, SIGXCPU, SIGALRM, SIGUSR1, SIGUSR2};
std::array<struct sigaction, NSIG> former;
std::atomic_flag ending;

extern "C" void end_suddenly(int signal, siginfo_t *info, void *) {
    while (ending.test_and_set()) // another thread handles a signal and ends this thread, too
        pause();
    names.for_each([](const TemporaryName &name) { unlink(name.path()); });
    if (std::ranges::count(requests, signal))
        _exit(128 + signal);
    if (signal == SIGBUS)
        mappings.for_each([&](const Mapping &mapping) {
            if (mapping.holds(info->si_addr))
                mapping.end_program();
        });
    sigaction(signal, &former[static_cast<std::size_t>(signal)], nullptr);
    if (info->si_code <= 0) // a process sent the signal; a fault repeats by itself
        raise(signal);
}

void handle_signals() {
    struct sigaction action {};
    action.sa_sigaction = end_suddenly;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK; // the stack may have overflowed
    sigfillset(&action.sa_mask);
    const auto handle = [&](int signal) {
        struct sigaction &before = former[static_cast<std::size_t>(signal)];
        sigaction(signal, nullptr, &before);
        if (before.sa_handler != SIG_IGN) // a signal that the parent process set to be ignored stays ignored
            sigaction(signal, &action, nullptr);
    };
    std::ranges::for_each(requests, handle);
    std::ranges::for_each(crashes, handle);
    std::signal(SIGXFSZ, SIG_IGN); // writing beyond a limit on file sizes then returns an error
}

void handle_signals_once() {
    static std::once_flag once;
    std::call_once(once, handle_signals);
}

} // namespace

TemporaryName::TemporaryName(std::string path) : path_(std::move(path)) {
    handle_signals_once();
    names.add(this);
}

TemporaryName::~TemporaryName() {
    unlink(path_.c_str()); // does nothing after the file was renamed
    names.remove(this);
}

Mapping::Mapping(int file, std::size_t bytes, Access access, const std::string &subject)
    : bytes_(bytes), line_((isatty(STDERR_FILENO) ? erase_bar : "") +
                           error_line(subject + (access == Access::read
                                                     ? ": the file was cut short while it was read, or its disk failed"
                                                     : ": the disk failed while the file was written"))),
      exit_code_(access == Access::read ? exit_bad_input : exit_failed) {
    handle_signals_once();
    void *memory = access == Access::read ? mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0)
                                          : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        throw Failure(exit_failed, subject + ": cannot be mapped: " + std::strerror(errno));
    data_ = static_cast<std::byte *>(memory);
    mappings.add(this);
}

Mapping::~Mapping() {
    mappings.remove(this);
    munmap(data_, bytes_);
}

bool Mapping::holds(const void *address) const {
    const std::less<const void *> below;
    return !below(address, data_) && below(address, data_ + bytes_);
}

// Under mpirun every process with the fault prints the line. The processes have no time to agree on one.
void Mapping::end_program() const {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line_.data(), line_.size());
    _exit(exit_code_);
}

} // namespace annulus::cli
