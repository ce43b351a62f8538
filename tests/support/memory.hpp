// SPDX-License-Identifier: Apache-2.0
// The memory that the tensors and the workspace of a call lie in. Tensors are made and checked on the host; a call
// works on copies of them in its memory, which come back after it with every guard and gap.
#pragma once

#include "support/tensors.hpp"

#include <annulus/context.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace annulus::test {

class Memory {
  public:
    virtual ~Memory() = default;

    virtual annulus_device device() const = 0;
    virtual int index() const { return 0; }
    // The stream of the contexts on this device, or null. What is below is ordered on it.
    virtual void *stream() const { return nullptr; }

    // At a multiple of 256 bytes.
    virtual void *allocate(std::size_t bytes) = 0;
    virtual void release(void *data) noexcept = 0;
    virtual void fill(void *data, unsigned char value, std::size_t bytes) = 0;
    virtual void upload(void *to, const void *from, std::size_t bytes) = 0;
    // Returns when the bytes are there.
    virtual void download(void *to, const void *from, std::size_t bytes) = 0;
};

// Other memory of the host than the tensors were made in.
Memory &host_memory();

struct Release {
    Memory *memory;
    void operator()(void *data) const { memory->release(data); }
};
using Allocation = std::unique_ptr<void, Release>;

inline Allocation allocate(Memory &memory, std::size_t bytes) {
    return Allocation(memory.allocate(bytes), Release{&memory});
}

// The bytes of tensors with what guards them, copied to a memory.
class Copies {
  public:
    // aligned: elements begin at a multiple of 256 bytes there; else at one of their own size and no larger.
    explicit Copies(Memory &memory, bool aligned = false) : memory_(memory), aligned_(aligned) {}

    // The tensor there. Its own memory, which must outlive this, is copied by the first view into it.
    annulus_tensor view(const Tensor &tensor);
    // Copies all of them there again, and back.
    void upload();
    void download();

  private:
    struct Copy {
        GuardedMemory *image;
        Allocation allocation;
        unsigned char *bytes;
    };
    Copy &copy_of(GuardedMemory &image);

    Memory &memory_;
    bool aligned_;
    std::vector<Copy> copies_;
};

} // namespace annulus::test
