// SPDX-License-Identifier: Apache-2.0
// The memory of a call's tensors and workspace. Tensors are made and checked on the host. A call works on copies of
// them in its memory. Afterwards the copies come back, with every guard and gap.
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
    // Returns the stream of the contexts on this device, or null. The functions below are ordered on it.
    virtual void *stream() const { return nullptr; }

    // Allocates memory at a multiple of 256 bytes.
    virtual void *allocate(std::size_t bytes) = 0;
    virtual void release(void *data) noexcept = 0;
    virtual void fill(void *data, unsigned char value, std::size_t bytes) = 0;
    virtual void upload(void *to, const void *from, std::size_t bytes) = 0;
    // Copies to the host; returns when the bytes are there.
    virtual void download(void *to, const void *from, std::size_t bytes) = 0;
};

// Returns memory of the host that is separate from the memory in which tensors are made.
Memory &host_memory();

struct Release {
    Memory *memory;
    void operator()(void *data) const { memory->release(data); }
};
using Allocation = std::unique_ptr<void, Release>;

inline Allocation allocate(Memory &memory, std::size_t bytes) {
    return Allocation(memory.allocate(bytes), Release{&memory});
}

// Copies of the bytes of tensors, guards included, in a memory.
class Copies {
  public:
    // aligned: the elements begin at a multiple of 256 bytes; otherwise at a multiple of their own size and of no
    // larger power of two.
    explicit Copies(Memory &memory, bool aligned = false) : memory_(memory), aligned_(aligned) {}

    // Returns the tensor's copy. The first view copies the tensor's memory, which must outlive this object.
    annulus_tensor view(const Tensor &tensor);
    // Copy all tensors to the memory again, and back.
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
