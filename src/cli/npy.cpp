// SPDX-License-Identifier: Apache-2.0
#include "npy.hpp"

#include "convert.hpp"
#include "handles.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace annulus::cli {

namespace {

class Descriptor {
  public:
    explicit Descriptor(int file) : file_(file) {}
    ~Descriptor() {
        if (file_ >= 0)
            close(file_);
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    int get() const { return file_; }

  private:
    int file_;
};

} // namespace

void InputArray::Unmap::operator()(std::byte *memory) const {
    munmap(memory, bytes);
}

InputArray::InputArray(std::string option, const std::string &path) : option_(std::move(option)) {
    const std::string subject = option_ + ": '" + path + "': ";
    const Descriptor file(
        open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); // a pipe without a writer must not hang
    struct stat status {};
    if (file.get() < 0 || fstat(file.get(), &status) != 0)
        throw bad_input(subject + std::strerror(errno));
    if (!S_ISREG(status.st_mode))
        throw bad_input(subject + "no regular file");
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes == 0)
        throw bad_input(subject + "the file is empty");
    void *memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (memory == MAP_FAILED)
        throw Failure(exit_failed, subject + std::strerror(errno));
    file_ = {static_cast<std::byte *>(memory), Unmap{bytes}};

    try {
        header_ = parse_npy_header({static_cast<const char *>(memory), bytes});
    } catch (const Failure &failure) {
        throw Failure(failure.exit_code(), subject + failure.what());
    }
    if (bytes - header_.data_offset < header_.data_bytes())
        throw bad_input(subject + "truncated: the header promises " + std::to_string(header_.data_bytes()) +
                        " bytes of numbers, the file holds " + std::to_string(bytes - header_.data_offset));
    if (header_.data_offset % static_cast<std::size_t>(annulus_dtype_bytes(header_.dtype)) != 0)
        convert_to(header_.dtype); // aligns
}

void *InputArray::data() const {
    return copy_ ? copy_.get() : file_.get() + header_.data_offset;
}

void InputArray::convert_to(annulus_dtype dtype) {
    const std::size_t count = header_.count();
    auto converted =
        std::make_unique_for_overwrite<std::byte[]>(count * static_cast<std::size_t>(annulus_dtype_bytes(dtype)));
    convert(dtype, converted.get(), header_.dtype, data(), count);
    copy_ = std::move(converted);
    file_.reset();
    header_.dtype = dtype;
}

OutputArray::OutputArray(const std::string &option, const std::string &path, annulus_dtype dtype,
                         const std::vector<std::int64_t> &shape)
    : data_offset_(format_npy_header(dtype, shape).size()),
      file_(option, path, data_offset_ + NpyHeader{dtype, shape, 0}.data_bytes()) {
    std::memcpy(file_.data(), format_npy_header(dtype, shape).data(), data_offset_);
}

} // namespace annulus::cli
