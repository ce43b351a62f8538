// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name only when it is complete. Until then it is a file without a name, mapped into
// memory, and so nothing is left whatever ends the program. Where the file system has no such files it has a temporary
// name, .annulus-* in the same directory, which goes away when the file is not committed or a signal ends the program
// that programs can catch. Also where it replaces an older file it has such a name, from its completion to that moment.
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
    // `option` is what messages call the file by. Throws Failure with exit_bad_input where `path` cannot be written.
    OutputFile(std::string option, const std::string &path, std::size_t bytes);
    std::byte *data() const { return mapping_->data(); }
    // Writes everything to disk and gives the file its name.
    void commit();

  private:
    void create();
    void reserve(std::size_t bytes);
    // Gives the file a name in its directory that nothing else has.
    void set_temporary_name();
    // Links the nameless file; returns whether it was done, errno says why not.
    bool link_as(const char *name) const;
    [[noreturn]] void fail(int exit_code, const char *action, int error) const;

    std::string option_;
    std::string path_; // with links resolved
    std::optional<TemporaryName> name_;
    Descriptor file_;
    std::optional<Mapping> mapping_;
};

// The file that an option names.
struct NamedFile {
    const char *option;
    std::string path; // empty: the option is not given
};

// Throws Failure with exit_bad_input where an output is the file of an input, or of another output, by whichever name.
void check_outputs(const std::vector<NamedFile> &outputs, const std::vector<NamedFile> &inputs);

// A whole file at once.
void write_file(const std::string &option, const std::string &path, const std::string &contents);

} // namespace annulus::cli
