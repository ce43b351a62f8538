// SPDX-License-Identifier: Apache-2.0
// The program's reader of .npy files. The input is a file. A header that was read must be the same after it is written
// and read again.
#include "fuzz/input.hpp"

#include "cli/arrays/dtype_bytes.hpp"
#include "cli/arrays/npy.hpp"
#include "cli/arrays/npy_header.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

using namespace annulus;
using namespace annulus::cli;

namespace {

// A file without a name.
class File {
  public:
    explicit File(std::string_view contents) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
        EXPECT(descriptor_ >= 0 &&
                   write(descriptor_, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()),
               "no file");
    }
    ~File() { close(descriptor_); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

  private:
    const int descriptor_;
};

// Returns the result of `read`. Returns nothing if it refuses the input, with a message that a terminal can show.
template <class Read> auto result_of(const Read &read) -> std::optional<decltype(read())> {
    try {
        return read();
    } catch (const Failure &failure) {
        const std::string_view message = failure.what();
        EXPECT(failure.exit_code() == exit_bad_input, "exit code %d", failure.exit_code());
        EXPECT(!message.empty() && message.size() < 1000, "a message of %zu bytes", message.size());
        EXPECT(std::ranges::all_of(message, [](unsigned char c) { return c >= ' ' && c < 127; }), "%s", failure.what());
        return std::nullopt;
    }
}

void read_file(std::string_view contents, annulus_dtype dtype) {
    const File file(contents);
    result_of([&] {
        InputArray read("--q", file.path());
        const std::size_t count = NpyHeader{read.dtype(), read.shape(), 0}.count();
        EXPECT(count * static_cast<std::size_t>(dtype_bytes(read.dtype())) <= contents.size(), "%zu numbers", count);
        read.convert_to(dtype);
        const auto bytes = static_cast<std::size_t>(dtype_bytes(dtype));
        const std::string_view numbers(static_cast<const char *>(read.data()), count * bytes);
        EXPECT(reinterpret_cast<std::uintptr_t>(numbers.data()) % bytes == 0, "alignment");
        return std::string(numbers).size(); // this reads all of them
    });
    if (const auto integers = result_of([&] { return parse_npy_integers(contents); }))
        EXPECT(integers->numbers.size() * 4 <= contents.size(), "%zu numbers", integers->numbers.size());
    if (const auto numbers = result_of([&] { return parse_npy_numbers(contents); }))
        EXPECT(numbers->numbers.size() <= contents.size(), "%zu numbers", numbers->numbers.size());
}

} // namespace

// The program installs signal handlers with its first file, once. That happens here, and then the handlers of libFuzzer
// and the sanitizers are restored.
extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    std::array<struct sigaction, NSIG> before{};
    for (int signal = 1; signal < NSIG; ++signal)
        sigaction(signal, nullptr, &before[static_cast<std::size_t>(signal)]);
    read_file("no array", ANNULUS_FLOAT32);
    for (int signal = 1; signal < NSIG; ++signal)
        sigaction(signal, &before[static_cast<std::size_t>(signal)], nullptr);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view contents(reinterpret_cast<const char *>(data), size);
    const std::optional<NpyHeader> header = result_of([&] { return parse_npy_header(contents); });
    if (header) {
        EXPECT(header->data_offset <= size, "data at %zu of %zu", header->data_offset, size);
        const NpyHeader again = parse_npy_header(format_npy_header(header->dtype, header->shape));
        EXPECT(again.dtype == header->dtype && again.shape == header->shape, "another header");
    }
    if (size > 0 && (header || size % 8 == 0))
        read_file(contents, static_cast<annulus_dtype>(ANNULUS_FLOAT64 + size % 4));
    return 0;
}
