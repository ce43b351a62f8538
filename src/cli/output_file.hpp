// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name only when it is complete. Until then it is a temporary file in the same directory,
// mapped into memory; it goes away when it is not committed, also when a signal ends the program.
#pragma once

#include <cstddef>
#include <string>

namespace annulus::cli {

class OutputFile {
  public:
    // `option` is what messages call the file by. Throws Failure with exit_bad_input where `path` cannot be written.
    OutputFile(std::string option, const std::string &path, std::size_t bytes);
    ~OutputFile();
    OutputFile(const OutputFile &) = delete;
    OutputFile &operator=(const OutputFile &) = delete;

    std::byte *data() const { return data_; }
    // Writes everything to disk and gives the file its name.
    void commit();

    // The path with links resolved: equal for two names of the same file.
    const std::string &path() const { return path_; }

  private:
    void create();
    void reserve();
    void remove() noexcept;
    [[noreturn]] void fail(int exit_code, const char *action, int error) const;

    std::string option_;
    std::string path_;
    std::string temporary_;
    std::size_t bytes_;
    int slot_ = -1; // among the files to remove on a signal
    int file_ = -1;
    std::byte *data_ = nullptr;
};

} // namespace annulus::cli
