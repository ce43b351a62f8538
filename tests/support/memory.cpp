// SPDX-License-Identifier: Apache-2.0
#include "support/memory.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace annulus::test {
namespace {

constexpr std::size_t alignment = 256;

class HostMemory final : public Memory {
  public:
    annulus_device device() const override { return ANNULUS_DEVICE_CPU; }
    void *allocate(std::size_t bytes) override { return ::operator new (bytes, std::align_val_t{alignment}); }
    void release(void *data) noexcept override { ::operator delete (data, std::align_val_t{alignment}); }
    void fill(void *data, unsigned char value, std::size_t bytes) override { std::memset(data, value, bytes); }
    void upload(void *to, const void *from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
    void download(void *to, const void *from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
};

} // namespace

Memory &host_memory() {
    static HostMemory memory;
    return memory;
}

Copies::Copy &Copies::copy_of(GuardedMemory &image) {
    const auto found =
        std::find_if(copies_.begin(), copies_.end(), [&](const Copy &copy) { return copy.image == &image; });
    if (found != copies_.end())
        return *found;
    const std::size_t shift = aligned_ ? alignment - image.guard() % alignment : 0;
    Allocation allocation = allocate(memory_, shift + image.bytes().size());
    auto *const bytes = static_cast<unsigned char *>(allocation.get()) + shift;
    memory_.upload(bytes, image.bytes().data(), image.bytes().size());
    return copies_.emplace_back(Copy{&image, std::move(allocation), bytes});
}

annulus_tensor Copies::view(const Tensor &tensor) {
    GuardedMemory &image = tensor.memory();
    annulus_tensor view = tensor.view();
    view.data = copy_of(image).bytes + (static_cast<unsigned char *>(view.data) - image.bytes().data());
    return view;
}

void Copies::upload() {
    for (const Copy &copy : copies_)
        memory_.upload(copy.bytes, copy.image->bytes().data(), copy.image->bytes().size());
}

void Copies::download() {
    for (const Copy &copy : copies_)
        memory_.download(copy.image->bytes().data(), copy.bytes, copy.image->bytes().size());
}

} // namespace annulus::test
