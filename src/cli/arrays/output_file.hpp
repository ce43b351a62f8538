// SPDX-License-Identifier: Apache-2.0
// A file that gets its name only when it is complete. Until then it has no name and is mapped into memory, so that
// nothing remains if the program ends.
// Some file systems have no files without a name. There the file has a temporary name, .annulus-*, in the same
// directory. It is removed if the file is not committed or a catchable signal ends the program.
// To replace an older file, the complete file gets such a temporary name, too, for the moment before it is renamed.
#pragma once

#include "cli/arrays/descriptor.hpp"
#include "cli/arrays/sudden_end.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

class OutputFile {
  public:
    // `option` names the file in messages. Throws Failure with exit_bad_input if `path` cannot be written.
    OutputFile(std::string option, const std::string &path, std::size_t bytes);
    std::byte *data() const { return mapping_->data(); }
    // Writes everything to disk and gives the file its name.
    void commit();

  private:
    void create();
    void reserve(std::size_t bytes);
    // Chooses a temporary name in the file's directory that no other file has.
    void set_temporary_name();
    // Links the file without a name. Returns true if it succeeded; otherwise errno says why not.
    bool link_as(const char *name) const;
    [[noreturn]] void fail(int exit_code, const char *action, int error) const;

    std::string option_;
    std::string path_; // with symbolic links resolved
    std::optional<TemporaryName> name_;
    Descriptor file_;
    std::optional<Mapping> mapping_;
};

// The file that an option names.
struct NamedFile {
    const char *option;
    std::string path; // empty: the user did not give the option
};

// Throws Failure with exit_bad_input if an output is the same file as an input or another output, under any name.
void check_outputs(const std::vector<NamedFile> &outputs, const std::vector<NamedFile> &inputs);

// Writes a whole file at once.
void write_file(const std::string &option, const std::string &path, const std::string &contents);

} // namespace annulus::cli
