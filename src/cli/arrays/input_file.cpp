// SPDX-License-Identifier: Apache-2.0
#include "cli/arrays/input_file.hpp"

#include "cli/report/failure.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>

namespace annulus::cli {

InputFile::InputFile(const std::string &option, const std::string &path)
    : subject_(option + ": '" + path + "'"),
      file_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) { // a pipe without a writer must not hang
    if (!file_ || fstat(file_.get(), &status_) != 0)
        throw bad_input(subject_ + ": " + std::strerror(errno));
    if (!S_ISREG(status_.st_mode))
        throw bad_input(subject_ + ": no regular file");
    if (status_.st_size == 0)
        throw bad_input(subject_ + ": the file is empty");
    mapping_.emplace(file_.get(), static_cast<std::size_t>(status_.st_size), Mapping::Access::read, subject_);
}

void InputFile::check_unchanged() const {
    struct stat now {};
    if (fstat(file_.get(), &now) != 0 || now.st_size != status_.st_size ||
        now.st_mtim.tv_sec != status_.st_mtim.tv_sec || now.st_mtim.tv_nsec != status_.st_mtim.tv_nsec)
        throw bad_input(subject_ + ": the file was changed while it was read");
}

} // namespace annulus::cli
