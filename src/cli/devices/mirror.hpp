// SPDX-License-Identifier: Apache-2.0
// A tensor of the host's where the calls on a device reach it.
#pragma once

#include "cli/arrays/host_tensor.hpp"
#include "cli/devices/memory.hpp"

#include <cstddef>
#include <vector>

namespace annulus::cli {

class Mirror {
  public:
    Mirror(Memory &memory, const annulus_tensor &host) : memory_(memory), tensor_(host) {
        if (memory.is_host())
            return;
        allocation_ = memory.allocate(bytes_of(host));
        tensor_ = view(allocation_.get(), host.dtype, shape_of(host));
        stretches_ = stretches_of(host);
    }

    const annulus_tensor &tensor() const { return tensor_; }
    void copy_in() {
        for_each([&](std::byte *here, const Stretch &host) { memory_.copy_in(here, host.data, host.bytes); });
    }
    void copy_out() {
        for_each([&](std::byte *here, const Stretch &host) { memory_.copy_out(host.data, here, host.bytes); });
    }

  private:
    template <class Copy> void for_each(const Copy &copy) {
        std::byte *here = allocation_.get();
        for (const Stretch &host : stretches_) {
            copy(here, host);
            here += host.bytes;
        }
    }

    Memory &memory_;
    Allocation allocation_;
    annulus_tensor tensor_;
    std::vector<Stretch> stretches_; // of the host's tensor; none where this is that
};

} // namespace annulus::cli
