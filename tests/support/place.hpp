// SPDX-License-Identifier: Apache-2.0
// Where the tensors and the workspace of a call lie. Tensors are made and checked on the host; a call works on copies
// of them on its place, which come back after it with every guard and gap.
#pragma once

#include "support/tensors.hpp"

#include <annulus/context.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace annulus::test {

class Place {
  public:
    virtual ~Place() = default;

    virtual annulus_device device() const = 0;
    virtual int index() const { return 0; }
    // The stream of the contexts on this place, or null. What is below is ordered on it.
    virtual void *stream() const { return nullptr; }

    // Memory at a multiple of 256 bytes.
    virtual void *allocate(std::size_t bytes) = 0;
    virtual void release(void *memory) noexcept = 0;
    virtual void fill(void *memory, unsigned char value, std::size_t bytes) = 0;
    virtual void upload(void *to, const void *from, std::size_t bytes) = 0;
    // Returns when the bytes are there.
    virtual void download(void *to, const void *from, std::size_t bytes) = 0;
};

// Other memory of the host than the tensors were made in.
Place &host_place();

struct PlaceDeleter {
    Place *place;
    void operator()(void *memory) const { place->release(memory); }
};
using PlaceMemory = std::unique_ptr<void, PlaceDeleter>;

inline PlaceMemory allocate(Place &place, std::size_t bytes) {
    return PlaceMemory(place.allocate(bytes), PlaceDeleter{&place});
}

// The memories of tensors, copied to a place.
class Copies {
  public:
    // aligned: elements begin at a multiple of 256 bytes on the place; else at one of their own size and no larger.
    explicit Copies(Place &place, bool aligned = false) : place_(place), aligned_(aligned) {}

    // The tensor on the place. Its memory, which must outlive this, is copied there by the first view into it.
    annulus_tensor view(const Tensor &tensor);
    // Copies all memories to the place again, and back.
    void upload();
    void download();

  private:
    struct Copy {
        Memory *image;
        PlaceMemory allocation;
        unsigned char *bytes;
    };
    Copy &copy_of(Memory &image);

    Place &place_;
    bool aligned_;
    std::vector<Copy> copies_;
};

} // namespace annulus::test
