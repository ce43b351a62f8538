// SPDX-License-Identifier: Apache-2.0
// A file to read, mapped into memory. Only the bytes that are used cost time. If bytes are missing while it is read,
// the program ends (sudden_end.hpp). check_unchanged() finds any other change.
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
    // `option` names the file in messages. Throws Failure with exit_bad_input unless it is a regular file that is not
    // empty.
    InputFile(const std::string &option, const std::string &path);

    std::byte *data() const { return mapping_->data(); }
    std::size_t bytes() const { return mapping_->bytes(); }
    // Returns the option and the path, for the beginning of messages.
    const std::string &subject() const { return subject_; }

    // Throws Failure with exit_bad_input if the file was changed since it was opened. The bytes read may then be a
    // mixture of the old file and the new.
    void check_unchanged() const;

  private:
    std::string subject_;
    Descriptor file_;
    struct stat status_ {};
    std::optional<Mapping> mapping_;
};

} // namespace annulus::cli
