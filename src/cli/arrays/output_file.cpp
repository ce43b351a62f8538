// SPDX-License-Identifier: Apache-2.0
#include "cli/arrays/output_file.hpp"

#include "cli/report/failure.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace annulus::cli {

namespace {

// True if the path that the user gave is the cause, and not the state of the machine.
bool is_path_error(int error) {
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM || error == EROFS ||
           error == ENAMETOOLONG || error == ELOOP;
}

// Returns the system's own link to an open file.
std::string link_to(const Descriptor &file) {
    return "/proc/self/fd/" + std::to_string(file.get());
}

} // namespace

OutputFile::OutputFile(std::string option, const std::string &path, std::size_t bytes)
    : option_(std::move(option)), path_(path) {
    std::error_code error;
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
    if (!error)
        path_ = resolved;
    const std::filesystem::file_status status = std::filesystem::status(path_, error);
    if (!std::filesystem::status_known(status))
        fail(exit_bad_input, "cannot create", error.value());
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        throw bad_input(option_ + ": '" + path + "' is no regular file");
    create();
    reserve(bytes);
}

void OutputFile::create() {
    const std::string directory = std::filesystem::path(path_).replace_filename(".");
    file_ = Descriptor(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
    if (file_ && access(link_to(file_).c_str(), F_OK) == 0) // commit() links it by this path
        return;
    set_temporary_name();
    file_ = Descriptor(open(name_->path(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file_)
        fail(is_path_error(errno) ? exit_bad_input : exit_failed, "cannot create", errno);
}

// Allocates the blocks on disk before anything is written through the mapping. A full disk is then an error here and
// not a bus error later.
void OutputFile::reserve(std::size_t bytes) {
    if (const int error = posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes)))
        fail(exit_failed, "cannot write", error);
    mapping_.emplace(file_.get(), bytes, Mapping::Access::write, option_ + ": '" + path_ + "'");
}

void OutputFile::commit() {
    // Only here can an error of writing through the mapping be seen.
    if (msync(mapping_->data(), mapping_->bytes(), MS_SYNC) != 0 || fsync(file_.get()) != 0)
        fail(exit_failed, "cannot write", errno);
    if (!name_) {
        if (link_as(path_.c_str()))
            return;
        if (errno != EEXIST)
            fail(exit_failed, "cannot write", errno);
        set_temporary_name(); // a link cannot replace a file; renaming can
        if (!link_as(name_->path()))
            fail(exit_failed, "cannot write", errno);
    }
    if (std::rename(name_->path(), path_.c_str()) != 0)
        fail(exit_failed, "cannot write", errno);
}

void OutputFile::set_temporary_name() {
    const std::string name = ".annulus-" + std::to_string(getpid()) + "-" + std::to_string(std::random_device()());
    name_.emplace(std::filesystem::path(path_).replace_filename(name));
}

bool OutputFile::link_as(const char *name) const {
    return linkat(AT_FDCWD, link_to(file_).c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
}

void OutputFile::fail(int exit_code, const char *action, int error) const {
    throw Failure(exit_code, option_ + ": " + action + " '" + path_ + "': " + std::strerror(error));
}

void check_outputs(const std::vector<NamedFile> &outputs, const std::vector<NamedFile> &inputs) {
    std::error_code error; // ignored: whoever opens a missing file reports it
    const auto resolved = [&](const std::string &path) {
        return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
    };
    const auto is_same = [&](const std::string &a, const std::string &b) {
        return std::filesystem::equivalent(a, b, error) || resolved(a) == resolved(b);
    };
    std::vector<NamedFile> others = inputs;
    for (const NamedFile &output : outputs) {
        for (const NamedFile &other : others)
            if (!output.path.empty() && !other.path.empty() && is_same(output.path, other.path))
                throw bad_input(std::string(output.option) + ": '" + output.path + "' is the file of " + other.option +
                                "; it must be another one");
        others.push_back(output);
    }
}

void write_file(const std::string &option, const std::string &path, const std::string &contents) {
    OutputFile file(option, path, contents.size());
    std::memcpy(file.data(), contents.data(), contents.size());
    file.commit();
}

} // namespace annulus::cli
