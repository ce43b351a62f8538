// SPDX-License-Identifier: Apache-2.0
#include "cli/arrays/npy.hpp"

#include "cli/arrays/convert.hpp"
#include "cli/arrays/dtype_bytes.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <cstring>
#include <utility>

namespace annulus::cli {

InputArray::InputArray(std::string option, const std::string &path) : option_(std::move(option)) {
    file_.emplace(option_, path);
    const std::string subject = file_->subject() + ": ";
    try {
        header_ = parse_npy_header({reinterpret_cast<const char *>(file_->data()), file_->bytes()});
    } catch (const Failure &failure) {
        throw Failure(failure.exit_code(), subject + failure.what());
    }
    const std::size_t promised = header_.data_bytes(), held = file_->bytes() - header_.data_offset;
    if (held < promised)
        throw bad_input(subject + "truncated: the header promises " + std::to_string(promised) +
                        " bytes of numbers, the file holds " + std::to_string(held));
    if (held > promised)
        throw bad_input(subject + "after the array, " + std::to_string(held - promised) +
                        (held - promised == 1 ? " byte follows" : " bytes follow") + "; it must end the file");
    if (header_.data_offset % static_cast<std::size_t>(dtype_bytes(header_.dtype)) != 0)
        convert_to(header_.dtype); // copies to aligned memory
}

void *InputArray::data() const {
    return copy_ ? copy_.get() : file_->data() + header_.data_offset;
}

void InputArray::convert_to(annulus_dtype dtype) {
    const std::size_t count = header_.count();
    auto converted = std::make_unique_for_overwrite<std::byte[]>(count * static_cast<std::size_t>(dtype_bytes(dtype)));
    convert(dtype, converted.get(), header_.dtype, data(), count);
    check_unchanged();
    copy_ = std::move(converted);
    file_.reset();
    header_.dtype = dtype;
}

void InputArray::check_unchanged() const {
    if (file_)
        file_->check_unchanged();
}

namespace {

// Returns what `parse` reads in the file. Names the file in messages.
template <class Parse> auto parsed_file(const std::string &option, const std::string &path, const Parse &parse) {
    const InputFile file(option, path);
    const std::string_view contents(reinterpret_cast<const char *>(file.data()), file.bytes());
    decltype(parse(contents)) numbers;
    try {
        numbers = parse(contents);
    } catch (const Failure &failure) {
        throw Failure(failure.exit_code(), file.subject() + ": " + failure.what());
    }
    file.check_unchanged();
    return numbers;
}

} // namespace

NpyNumbers read_npy_numbers(const std::string &option, const std::string &path) {
    return parsed_file(option, path, parse_npy_numbers);
}

std::vector<std::int64_t> read_integers(const std::string &option, const std::string &text) {
    if (!is_npy_path(text)) {
        std::vector<std::int64_t> numbers;
        for (const std::string_view word : split(text, ',')) {
            const std::optional<std::int64_t> number = parse_integer(word);
            if (!number)
                throw bad_input(option + " " + text +
                                ": must be whole numbers with commas between them, or a .npy file");
            numbers.push_back(*number);
        }
        return numbers;
    }
    NpyIntegers integers = parsed_file(option, text, parse_npy_integers);
    if (integers.shape.size() != 1)
        throw bad_input(option + " '" + text + "': the array has " + std::to_string(integers.shape.size()) +
                        " dimensions; it must have 1");
    if (integers.numbers.empty())
        throw bad_input(option + " '" + text + "': the array has no numbers");
    return std::move(integers.numbers);
}

OutputArray::OutputArray(const std::string &option, const std::string &path, annulus_dtype dtype,
                         const std::vector<std::int64_t> &shape)
    : data_offset_(format_npy_header(dtype, shape).size()),
      file_(option, path, data_offset_ + NpyHeader{dtype, shape, 0}.data_bytes()) {
    std::memcpy(file_.data(), format_npy_header(dtype, shape).data(), data_offset_);
}

} // namespace annulus::cli
