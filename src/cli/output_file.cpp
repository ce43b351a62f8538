// SPDX-License-Identifier: Apache-2.0
#include "output_file.hpp"

#include "handles.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <random>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace annulus::cli {

namespace {

// The temporary files, where a signal handler can read them: a name is complete while `used` is set.
struct Slot {
    std::atomic<bool> used = false;
    char name[PATH_MAX] = {};
};
std::array<Slot, 2> slots;
static_assert(std::atomic<bool>::is_always_lock_free);

void remove_all() {
    for (const Slot &slot : slots)
        if (slot.used)
            unlink(slot.name);
}

extern "C" void remove_and_exit(int signal) {
    remove_all();
    _exit(128 + signal);
}

// The pages of a mapped file can no longer be read or written: it was cut short meanwhile, or its disk failed.
extern "C" void remove_and_fail(int) {
    remove_all();
    constexpr char message[] = "annulus: a file could not be read or written any more while it was in use\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
    _exit(exit_failed);
}

void handle(int signal, void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigfillset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
}

void handle_signals() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction before {};
        sigaction(signal, nullptr, &before);
        if (before.sa_handler != SIG_IGN) // what our parent has us ignore stays ignored
            handle(signal, remove_and_exit);
    }
    handle(SIGBUS, remove_and_fail);
    handle(SIGXFSZ, SIG_IGN); // a limit on file sizes is then an error like any other
}

int take_slot(const std::string &name) {
    for (std::size_t i = 0; i < slots.size(); ++i)
        if (!slots[i].used && name.size() < sizeof slots[i].name) {
            std::memcpy(slots[i].name, name.c_str(), name.size() + 1);
            slots[i].used = true;
            return static_cast<int>(i);
        }
    throw std::logic_error("more output files than slots");
}

// Whether the path that the user gave is to blame, and not the state of the machine.
bool is_path_error(int error) {
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM || error == EROFS ||
           error == ENAMETOOLONG || error == ELOOP;
}

} // namespace

OutputFile::OutputFile(std::string option, const std::string &path, std::size_t bytes)
    : option_(std::move(option)), path_(path), bytes_(bytes) {
    if (path.empty())
        throw bad_input(option_ + ": the path is empty");
    std::error_code error;
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
    if (!error)
        path_ = resolved;
    const std::filesystem::file_status status = std::filesystem::status(path_, error);
    if (!std::filesystem::status_known(status))
        fail(exit_bad_input, "cannot create", error.value());
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        throw bad_input(option_ + ": '" + path + "' is no regular file");
    try {
        create();
        reserve();
    } catch (...) {
        remove();
        throw;
    }
}

OutputFile::~OutputFile() {
    remove();
}

// The name is noted for the signal handler before the file exists, so there is no moment when the file would be left.
void OutputFile::create() {
    static std::once_flag once;
    std::call_once(once, handle_signals);
    const std::string name = ".annulus-" + std::to_string(getpid()) + "-" + std::to_string(std::random_device()());
    temporary_ = std::filesystem::path(path_).replace_filename(name);
    slot_ = take_slot(temporary_);
    file_ = open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0)
        fail(is_path_error(errno) ? exit_bad_input : exit_failed, "cannot create", errno);
}

// The blocks are there before the first byte is written through the mapping: a full disk is an error here, and not a
// bus error later.
void OutputFile::reserve() {
    if (const int error = posix_fallocate(file_, 0, static_cast<off_t>(bytes_)))
        fail(exit_failed, "cannot write", error);
    void *memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED)
        fail(exit_failed, "cannot map", errno);
    data_ = static_cast<std::byte *>(memory);
}

void OutputFile::commit() {
    // What was written through a mapping has no other moment to report an error.
    if (msync(data_, bytes_, MS_SYNC) != 0 || fsync(file_) != 0)
        fail(exit_failed, "cannot write", errno);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
        fail(exit_failed, "cannot write", errno);
    slots[static_cast<std::size_t>(slot_)].used = false;
    slot_ = -1;
}

void OutputFile::remove() noexcept {
    if (data_)
        munmap(data_, bytes_);
    if (file_ >= 0)
        close(file_);
    if (slot_ >= 0) {
        if (file_ >= 0)
            unlink(temporary_.c_str());
        slots[static_cast<std::size_t>(slot_)].used = false;
    }
}

void OutputFile::fail(int exit_code, const char *action, int error) const {
    throw Failure(exit_code, option_ + ": " + action + " '" + path_ + "': " + std::strerror(error));
}

} // namespace annulus::cli
