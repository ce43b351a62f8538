// SPDX-License-Identifier: Apache-2.0
// Rows of the host's arrays in memory that the device's calls can use.
#pragma once

#include "cli/arrays/host_tensor.hpp"
#include "cli/devices/memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::cli {

class Mirror {
  public:
    // Makes one tensor of all `parts`, part after part along `dimension`. There is at least one part. A single part in
    // the host's memory is used without a copy if the device can use it.
    Mirror(Memory &memory, const std::vector<annulus_tensor> &parts, int dimension)
        : memory_(memory), tensor_(parts.front()) {
        if (parts.size() == 1 && memory.is_host())
            return;
        Shape shape = shape_of(tensor_);
        std::int64_t &rows = shape[static_cast<std::size_t>(dimension)] = 0;
        for (const annulus_tensor &part : parts)
            rows += part.shape[dimension];
        tensor_ = view(nullptr, tensor_.dtype, shape);
        allocation_ = memory.allocate(bytes_of(tensor_));
        tensor_.data = allocation_.get();
        std::int64_t start = 0;
        for (const annulus_tensor &part : parts) {
            add_copies(slice(tensor_, dimension, start, part.shape[dimension]), part);
            start += part.shape[dimension];
        }
    }

    const annulus_tensor &tensor() const { return tensor_; }
    void copy_in() {
        for (const Copy &copy : copies_)
            memory_.copy_in(copy.here, copy.host, copy.bytes);
    }
    void copy_out() {
        for (const Copy &copy : copies_)
            memory_.copy_out(copy.host, copy.here, copy.bytes);
    }

  private:
    struct Copy {
        std::byte *here, *host;
        std::size_t bytes;
    };

    // Adds the copies between two tensors of the same shape, whose contiguous pieces may differ in length.
    void add_copies(const annulus_tensor &here, const annulus_tensor &host) {
        std::vector<Stretch> targets = stretches_of(here), sources = stretches_of(host);
        for (std::size_t i = 0, j = 0; i < targets.size();) {
            Stretch &target = targets[i], &source = sources[j];
            const std::size_t bytes = std::min(target.bytes, source.bytes);
            copies_.push_back({target.data, source.data, bytes});
            for (Stretch *stretch : {&target, &source}) {
                stretch->data += bytes;
                stretch->bytes -= bytes;
            }
            i += target.bytes == 0;
            j += source.bytes == 0;
        }
    }

    Memory &memory_;
    Allocation allocation_;
    annulus_tensor tensor_;
    std::vector<Copy> copies_; // empty if the tensor is the host's
};

} // namespace annulus::cli
