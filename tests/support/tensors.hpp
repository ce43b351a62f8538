// SPDX-License-Identifier: Apache-2.0
// Tensors in memory of which every other byte is watched. Guards around the elements and gaps between them hold 0xFF, a
// NaN in every dtype. A result shows if a gap was read, GuardedMemory::intact() if one was written.
#pragma once

#include "support/number.hpp"

#include <annulus/tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace annulus::test {

// How the rows of [B, N, heads, D] tensors lie in memory.
enum class Layout {
    rows,        // as the shape says
    heads_first, // [B, heads, N, D]
    gaps,        // unused elements after every row, position and batch entry
    packed,      // tensors that are made together share rows of one [B, N, all heads, D] buffer
};

class GuardedMemory {
  public:
    explicit GuardedMemory(std::size_t elements, std::size_t element_bytes);

    void *data() { return bytes_.data() + guard_; }
    // Marks the elements of `view` as writable; every other byte is watched.
    void watch(const annulus_tensor &view);
    // True if all watched bytes are unchanged.
    bool intact() const;
    // Sets every byte to 0xFF.
    void poison();
    // remember() stores all bytes; as_remembered() is true if they are still the same.
    void remember() { remembered_ = bytes_; }
    bool as_remembered() const { return bytes_ == remembered_; }
    std::vector<unsigned char> &bytes() { return bytes_; }
    // Returns the number of bytes before the first element.
    std::size_t guard() const { return guard_; }

  private:
    std::size_t guard_;
    std::vector<unsigned char> bytes_;
    std::vector<unsigned char> element_; // 0xFF: the byte is not watched
    std::vector<unsigned char> remembered_;
};

class Tensor {
  public:
    // Makes the tensors [batch, length, heads[i], dim], i = 0, 1, …, in one memory if the layout packs them.
    static std::vector<Tensor> rows(Layout layout, annulus_dtype dtype, std::int64_t batch, std::int64_t length,
                                    const std::vector<std::int32_t> &heads, std::int32_t dim);
    // Makes a [batch, heads, length] tensor; its strides follow the rows' layout.
    static Tensor statistics(Layout layout, annulus_dtype dtype, std::int64_t batch, std::int32_t heads,
                             std::int64_t length);

    const annulus_tensor &view() const { return view_; }
    GuardedMemory &memory() const { return *memory_; }

    // Returns the elements in the order of the shape.
    std::vector<double> values() const;
    void assign(const std::vector<double> &values);

  private:
    Tensor(std::shared_ptr<GuardedMemory> memory, const annulus_tensor &view);

    std::shared_ptr<GuardedMemory> memory_;
    annulus_tensor view_;
};

} // namespace annulus::test
