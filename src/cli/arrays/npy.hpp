// SPDX-License-Identifier: Apache-2.0
// Arrays in .npy files, mapped into memory.
#pragma once

#include "cli/arrays/input_file.hpp"
#include "cli/arrays/npy_header.hpp"
#include "cli/arrays/output_file.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// An array to read: the file's own pages, or a copy after a conversion.
class InputArray {
  public:
    // `option` names the file in messages. Throws Failure with exit_bad_input unless the file holds an array.
    InputArray(std::string option, const std::string &path);

    const std::string &option() const { return option_; }
    annulus_dtype dtype() const { return header_.dtype; }
    const std::vector<std::int64_t> &shape() const { return header_.shape; }
    // Returns the numbers, aligned to their size. The library has one type of pointer for inputs and outputs; do not
    // write here.
    void *data() const;

    void convert_to(annulus_dtype dtype);

    // Throws Failure with exit_bad_input if the file was changed since it was opened. Does nothing if a copy replaces
    // it.
    void check_unchanged() const;

  private:
    std::string option_;
    std::optional<InputFile> file_;
    std::unique_ptr<std::byte[]> copy_; // the converted numbers; null: file_ is used
    NpyHeader header_;
};

// Returns the numbers of a .npy file of any float or integer dtype. Throws Failure with exit_bad_input.
NpyNumbers read_npy_numbers(const std::string &option, const std::string &path);

// True if an option that takes numbers or a file of numbers names a file.
inline bool is_npy_path(const std::string &text) {
    return text.ends_with(".npy");
}

// Returns the whole numbers of an option, at least one. They are in a .npy file of one dimension, or `text` is a list
// such as "0,70,100". Throws Failure with exit_bad_input.
std::vector<std::int64_t> read_integers(const std::string &option, const std::string &text);

// An array to write. The file gets its name by commit().
class OutputArray {
  public:
    OutputArray(const std::string &option, const std::string &path, annulus_dtype dtype,
                const std::vector<std::int64_t> &shape);

    void *data() const { return file_.data() + data_offset_; }
    void commit() { file_.commit(); }

  private:
    std::size_t data_offset_;
    OutputFile file_;
};

} // namespace annulus::cli
