// SPDX-License-Identifier: Apache-2.0
// An open file, closed when its owner goes away.
#pragma once

#include <unistd.h>
#include <utility>

namespace annulus::cli {

class Descriptor {
  public:
    // `file` is what open() returned: negative if it failed.
    explicit Descriptor(int file = -1) : file_(file) {}
    ~Descriptor() {
        if (*this)
            close(file_);
    }
    Descriptor(Descriptor &&other) noexcept : file_(std::exchange(other.file_, -1)) {}
    Descriptor &operator=(Descriptor &&other) noexcept {
        std::swap(file_, other.file_);
        return *this;
    }

    explicit operator bool() const { return file_ >= 0; }
    int get() const { return file_; }

  private:
    int file_;
};

} // namespace annulus::cli
