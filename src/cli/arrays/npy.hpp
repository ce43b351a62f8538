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

// An array to read: the file's own pages, or a copy once it was converted.
class InputArray {
  public:
    // `option` is what messages call the file by. Throws Failure with exit_bad_input unless the file holds an array.
    InputArray(std::string option, const std::string &path);

    const std::string &option() const { return option_; }
    annulus_dtype dtype() const { return header_.dtype; }
    const std::vector<std::int64_t> &shape() const { return header_.shape; }
    // Aligned to the element's size. The library takes inputs and outputs by one type of pointer; do not write.
    void *data() const;

    void convert_to(annulus_dtype dtype);

    // Throws Failure with exit_bad_input where the file was changed since it was opened, unless a copy stands for it.
    void check_unchanged() const;

  private:
    std::string option_;
    std::optional<InputFile> file_;
    std::unique_ptr<std::byte[]> copy_; // or the converted numbers
    NpyHeader header_;
};

// The whole numbers of a .npy file. Throws Failure with exit_bad_input.
NpyIntegers read_npy_integers(const std::string &option, const std::string &path);

// Whether an option that takes numbers or a file of them names a file.
inline bool is_npy_path(const std::string &text) {
    return text.ends_with(".npy");
}

// The whole numbers of an option: those of a file of one dimension, where is_npy_path(), else the list that `text` is,
// "0,70,100"; at least one. Throws Failure with exit_bad_input.
std::vector<std::int64_t> read_integers(const std::string &option, const std::string &text);

// An array to write. It appears under its name with commit().
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
