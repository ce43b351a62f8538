// SPDX-License-Identifier: Apache-2.0
// A file to read, mapped into memory: it costs nothing before its bytes are used. What becomes of it meanwhile is
// noticed: where bytes are missing the program ends (sudden_end.hpp), and any other change is found afterwards.
#pragma once

#include "cli/arrays/descriptor.hpp"
#include "cli/arrays/sudden_end.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <sys/stat.h>

namespace annulus::cli {

class InputFile {
  public:
    // `option` is what messages call the file by. Throws Failure with exit_bad_input unless it is a file with contents.
    InputFile(const std::string &option, const std::string &path);

    std::byte *data() const { return mapping_->data(); }
    std::size_t bytes() const { return mapping_->bytes(); }
    // The option and the path, to begin messages with.
    const std::string &subject() const { return subject_; }

    // Throws Failure with exit_bad_input where the file was changed since it was opened: what was read of it may be of
    // the one state and of the other.
    void check_unchanged() const;

  private:
    std::string subject_;
    Descriptor file_;
    struct stat status_ {};
    std::optional<Mapping> mapping_;
};

} // namespace annulus::cli
