// SPDX-License-Identifier: Apache-2.0
#include "support/place.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace annulus::test {
namespace {

constexpr std::size_t alignment = 256;

class HostPlace final : public Place {
  public:
    annulus_device device() const override { return ANNULUS_DEVICE_CPU; }
    void *allocate(std::size_t bytes) override { return ::operator new (bytes, std::align_val_t{alignment}); }
    void release(void *memory) noexcept override { ::operator delete (memory, std::align_val_t{alignment}); }
    void fill(void *memory, unsigned char value, std::size_t bytes) override { std::memset(memory, value, bytes); }
    void upload(void *to, const void *from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
    void download(void *to, const void *from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
};

} // namespace

Place &host_place() {
    static HostPlace place;
    return place;
}

Copies::Copy &Copies::copy_of(Memory &image) {
    const auto found =
        std::find_if(copies_.begin(), copies_.end(), [&](const Copy &copy) { return copy.image == &image; });
    if (found != copies_.end())
        return *found;
    const std::size_t shift = aligned_ ? alignment - image.guard() % alignment : 0;
    PlaceMemory allocation = allocate(place_, shift + image.bytes().size());
    auto *const bytes = static_cast<unsigned char *>(allocation.get()) + shift;
    place_.upload(bytes, image.bytes().data(), image.bytes().size());
    return copies_.emplace_back(&image, std::move(allocation), bytes);
}

annulus_tensor Copies::view(const Tensor &tensor) {
    Memory &image = tensor.memory();
    annulus_tensor view = tensor.view();
    view.data = copy_of(image).bytes + (static_cast<unsigned char *>(view.data) - image.bytes().data());
    return view;
}

void Copies::upload() {
    for (const Copy &copy : copies_)
        place_.upload(copy.bytes, copy.image->bytes().data(), copy.image->bytes().size());
}

void Copies::download() {
    for (const Copy &copy : copies_)
        place_.download(copy.image->bytes().data(), copy.bytes, copy.image->bytes().size());
}

} // namespace annulus::test
