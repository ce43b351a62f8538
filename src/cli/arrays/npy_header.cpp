// SPDX-License-Identifier: Apache-2.0
#include "cli/arrays/npy_header.hpp"

#include "cli/arrays/convert.hpp"
#include "cli/arrays/dtype_bytes.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

namespace annulus::cli {

namespace {

constexpr std::string_view magic = "\x93NUMPY";

using KnownDescriptor = std::pair<std::string_view, annulus_dtype>;
constexpr KnownDescriptor descriptors[] = {{"<f8", ANNULUS_FLOAT64},
                                           {"<f4", ANNULUS_FLOAT32},
                                           {"<f2", ANNULUS_FLOAT16},
                                           {"<V2", ANNULUS_BFLOAT16},
                                           {"|V2", ANNULUS_BFLOAT16}};

constexpr const char *accepted_numbers = "must be little-endian float64, float32, float16 or ml_dtypes' bfloat16";
constexpr const char *accepted_integers = "must be little-endian int64 or int32";
constexpr const char *accepted_reals = "must be a little-endian integer or float dtype";

// The contents of the header.
struct Dictionary {
    std::string_view descriptor;
    std::vector<std::int64_t> shape;
    std::size_t data_offset = 0;
};

// Shows the descriptor in printable characters and shortened, since the file may come from anybody.
Failure bad_dtype(std::string_view descriptor, const char *accepted) {
    constexpr std::size_t max_shown = 64;
    std::string shown(descriptor.substr(0, max_shown));
    std::ranges::replace_if(
        shown, [](char c) { return c < ' ' || c > '~'; }, '?');
    return bad_input("the dtype is '" + shown + (descriptor.size() > max_shown ? "...'; it " : "'; it ") + accepted);
}

// Reads the Python dictionary of a header.
class DictionaryReader {
  public:
    // `accepted` ends the message about a dtype that is not allowed.
    DictionaryReader(std::string_view text, const char *accepted) : rest_(text), accepted_(accepted) {}

    Dictionary read() {
        expect('{');
        while (!accept('}')) {
            const std::string_view key = quoted();
            expect(':');
            if (key == "descr" && !has_dtype_)
                read_dtype();
            else if (key == "fortran_order" && !has_order_)
                read_order();
            else if (key == "shape" && !has_shape_)
                read_shape();
            else
                fail(); // unknown or repeated
            if (!accept(',')) {
                expect('}');
                break;
            }
        }
        skip_space();
        if (!has_dtype_ || !has_order_ || !has_shape_ || !rest_.empty())
            fail();
        return std::move(dictionary_);
    }

  private:
    [[noreturn]] static void fail() { throw bad_input("the .npy header is damaged"); }

    void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }

    bool accept(char c) {
        skip_space();
        if (!rest_.starts_with(c))
            return false;
        rest_.remove_prefix(1);
        return true;
    }

    void expect(char c) {
        if (!accept(c))
            fail();
    }

    bool accept_word(std::string_view word) {
        skip_space();
        if (!rest_.starts_with(word))
            return false;
        rest_.remove_prefix(word.size());
        return true;
    }

    std::string_view quoted() {
        skip_space();
        if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"'))
            fail();
        const std::size_t end = rest_.find(rest_[0], 1);
        if (end == std::string_view::npos)
            fail();
        const std::string_view text = rest_.substr(1, end - 1);
        rest_.remove_prefix(end + 1);
        return text;
    }

    void read_dtype() {
        skip_space();
        if (rest_.starts_with('['))
            throw bad_input(std::string("the dtype is structured; it ") + accepted_);
        dictionary_.descriptor = quoted();
        has_dtype_ = true;
    }

    void read_order() {
        if (accept_word("True"))
            throw bad_input("the array is in Fortran order; save numpy.ascontiguousarray() of it");
        if (!accept_word("False"))
            fail();
        has_order_ = true;
    }

    void read_shape() {
        expect('(');
        while (!accept(')')) {
            skip_space();
            const std::size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
            const std::optional<std::int64_t> size = parse_integer(rest_.substr(0, digits));
            if (!size)
                fail();
            dictionary_.shape.push_back(*size);
            rest_.remove_prefix(digits);
            if (!accept(',')) {
                expect(')');
                break;
            }
        }
        has_shape_ = true;
    }

    std::string_view rest_;
    const char *accepted_;
    Dictionary dictionary_;
    bool has_dtype_ = false, has_order_ = false, has_shape_ = false;
};

// Throws unless the product of the sizes fits into int64 bytes. Strides and the bytes of parts then fit, too. An array
// without numbers may have large sizes beside the 0, so 0 counts as 1 here.
void check_size(std::int64_t bytes, const std::vector<std::int64_t> &shape) {
    for (const std::int64_t size : shape)
        if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes))
            throw bad_input("the shape in the .npy header is too large");
}

Dictionary parse_dictionary(std::string_view file, const char *accepted) {
    if (!file.starts_with(magic))
        throw bad_input("not a .npy file");
    const std::size_t version_end = magic.size() + 2;
    const unsigned char version = file.size() < version_end ? 0 : static_cast<unsigned char>(file[magic.size()]);
    const std::size_t length_bytes = version == 1 ? 2 : 4;
    if (file.size() < version_end + length_bytes)
        throw bad_input("truncated inside the .npy header");
    if (version < 1 || version > 3)
        throw bad_input("version " + std::to_string(version) + " of the .npy format; 1 to 3 are known");
    std::size_t length = 0;
    for (std::size_t i = length_bytes; i-- > 0;)
        length = length << 8 | static_cast<unsigned char>(file[version_end + i]);
    const std::size_t begin = version_end + length_bytes;
    if (file.size() - begin < length)
        throw bad_input("truncated inside the .npy header");

    Dictionary dictionary = DictionaryReader(file.substr(begin, length), accepted).read();
    dictionary.data_offset = begin + length;
    return dictionary;
}

// Returns the bytes of the numbers, of `width` bytes each. Throws unless the file has exactly the numbers that the
// header promises.
std::string_view data_of(std::string_view file, const Dictionary &dictionary, std::int64_t width) {
    check_size(width, dictionary.shape);
    std::size_t promised = static_cast<std::size_t>(width);
    for (const std::int64_t size : dictionary.shape)
        promised *= static_cast<std::size_t>(size);
    const std::string_view data = file.substr(dictionary.data_offset);
    if (data.size() != promised)
        throw bad_input("the header promises " + std::to_string(promised) + " bytes of numbers, the file holds " +
                        std::to_string(data.size()));
    return data;
}

template <class Integer, class Number> std::vector<Number> integers_in(std::string_view data) {
    std::vector<Number> numbers;
    numbers.reserve(data.size() / sizeof(Integer));
    for (std::size_t at = 0; at < data.size(); at += sizeof(Integer)) {
        Integer number;
        std::memcpy(&number, data.data() + at, sizeof number);
        numbers.push_back(static_cast<Number>(number));
    }
    return numbers;
}

struct IntegerReader {
    std::string_view descriptor;
    std::int64_t width; // bytes
    std::vector<double> (*read)(std::string_view data);
};

template <class Integer> constexpr IntegerReader reader_of(std::string_view descriptor) {
    return {descriptor, sizeof(Integer), integers_in<Integer, double>};
}

constexpr IntegerReader integer_readers[] = {reader_of<std::int8_t>("|i1"),  reader_of<std::uint8_t>("|u1"),
                                             reader_of<std::int16_t>("<i2"), reader_of<std::uint16_t>("<u2"),
                                             reader_of<std::int32_t>("<i4"), reader_of<std::uint32_t>("<u4"),
                                             reader_of<std::int64_t>("<i8"), reader_of<std::uint64_t>("<u8")};

} // namespace

std::size_t NpyHeader::count() const {
    std::size_t count = 1;
    for (const std::int64_t size : shape)
        count *= static_cast<std::size_t>(size);
    return count;
}

std::size_t NpyHeader::data_bytes() const {
    return count() * static_cast<std::size_t>(dtype_bytes(dtype));
}

NpyHeader parse_npy_header(std::string_view file) {
    Dictionary dictionary = parse_dictionary(file, accepted_numbers);
    const auto *const known = std::ranges::find(descriptors, dictionary.descriptor, &KnownDescriptor::first);
    if (known == std::end(descriptors))
        throw bad_dtype(dictionary.descriptor, accepted_numbers);
    check_size(dtype_bytes(known->second), dictionary.shape);
    return {known->second, std::move(dictionary.shape), dictionary.data_offset};
}

NpyIntegers parse_npy_integers(std::string_view file) {
    Dictionary dictionary = parse_dictionary(file, accepted_integers);
    const bool is_wide = dictionary.descriptor == "<i8";
    if (!is_wide && dictionary.descriptor != "<i4")
        throw bad_dtype(dictionary.descriptor, accepted_integers);
    const std::string_view data = data_of(file, dictionary, is_wide ? 8 : 4);
    return {std::move(dictionary.shape),
            is_wide ? integers_in<std::int64_t, std::int64_t>(data) : integers_in<std::int32_t, std::int64_t>(data)};
}

NpyNumbers parse_npy_numbers(std::string_view file) {
    Dictionary dictionary = parse_dictionary(file, accepted_reals);
    const std::string_view descriptor = dictionary.descriptor;
    if (const auto *const reader = std::ranges::find(integer_readers, descriptor, &IntegerReader::descriptor);
        reader != std::end(integer_readers)) {
        std::vector<double> numbers = reader->read(data_of(file, dictionary, reader->width));
        return {std::move(dictionary.shape), std::move(numbers)};
    }
    const auto *const known = std::ranges::find(descriptors, descriptor, &KnownDescriptor::first);
    if (known == std::end(descriptors))
        throw bad_dtype(descriptor, accepted_reals);
    const int width = dtype_bytes(known->second);
    const std::string_view data = data_of(file, dictionary, width);
    std::vector<double> numbers(data.size() / static_cast<std::size_t>(width));
    convert(ANNULUS_FLOAT64, numbers.data(), known->second, data.data(), numbers.size());
    return {std::move(dictionary.shape), std::move(numbers)};
}

std::string format_npy_header(annulus_dtype dtype, const std::vector<std::int64_t> &shape) {
    std::string dictionary = "{'descr': '";
    for (const auto &[text, value] : descriptors)
        if (value == dtype) {
            dictionary += text;
            break;
        }
    dictionary += "', 'fortran_order': False, 'shape': (";
    for (std::size_t i = 0; i < shape.size(); ++i)
        dictionary += (i ? ", " : "") + std::to_string(shape[i]);
    dictionary += shape.size() == 1 ? ",), }" : "), }";

    const std::size_t before = magic.size() + 4;
    dictionary.append(63 - (before + dictionary.size()) % 64, ' ');
    dictionary += '\n';
    std::string header(magic);
    header += {'\x01', '\x00', static_cast<char>(dictionary.size() & 0xFF), static_cast<char>(dictionary.size() >> 8)};
    return header + dictionary;
}

} // namespace annulus::cli
