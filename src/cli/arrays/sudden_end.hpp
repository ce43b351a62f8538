// SPDX-License-Identifier: Apache-2.0
// Signal handlers for signals that end the program. They remove unfinished files that have a name. If a mapped file can
// no longer be read or written, since it was cut short or its disk failed, they print one line.
#pragma once

#include <cstddef>
#include <string>

namespace annulus::cli {

// The name of an unfinished file. The destructor or a signal handler removes the file, whichever comes first. Make this
// object before the file, so that there is no moment when a signal would leave the file.
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

// A file mapped into memory. The program ends if the file's pages become inaccessible, in any thread: with
// exit_bad_input for a file that is read, with exit_failed for one that is written.
class Mapping {
  public:
    enum class Access { read, write };
    // `subject` names the file in messages. Throws Failure with exit_failed.
    Mapping(int file, std::size_t bytes, Access access, const std::string &subject);
    ~Mapping();
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    std::byte *data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

    // For the signal handler: whether the address is in the mapping, and the program's end.
    bool holds(const void *address) const;
    [[noreturn]] void end_program() const;

  private:
    std::byte *data_;
    std::size_t bytes_;
    std::string line_; // the message that ends the program
    int exit_code_;
};

} // namespace annulus::cli
