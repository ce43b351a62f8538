// SPDX-License-Identifier: Apache-2.0
// What a signal that ends the program finds to do first: unfinished files that have a name are removed, and a file that
// cannot be had any more while it is mapped, since somebody cut it short or its disk failed, is told in one line.
#pragma once

#include <cstddef>
#include <string>

namespace annulus::cli {

// The name of an unfinished file: removed with this object or by a signal, whichever comes first. It is to be made
// before the file, so that there is no moment when the file would be left.
class TemporaryName {
  public:
    explicit TemporaryName(std::string path);
    ~TemporaryName();
    TemporaryName(const TemporaryName &) = delete;
    TemporaryName &operator=(const TemporaryName &) = delete;

    const char *path() const { return path_.c_str(); }

  private:
    std::string path_;
};

// A file in memory. Where its pages cannot be had any more, in whichever thread of the process, the program ends: with
// exit_bad_input for a file that is read, with exit_failed for one that is written.
class Mapping {
  public:
    enum class Access { read, write };
    // `subject` is what messages call the file by. Throws Failure with exit_failed.
    Mapping(int file, std::size_t bytes, Access access, const std::string &subject);
    ~Mapping();
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    std::byte *data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

    // For the signal handler.
    bool holds(const void *address) const;
    [[noreturn]] void end_program() const;

  private:
    std::byte *data_;
    std::size_t bytes_;
    std::string line_; // to end the program with
    int exit_code_;
};

} // namespace annulus::cli
