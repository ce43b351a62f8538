// SPDX-License-Identifier: Apache-2.0
// Tensors of a call, in memory that ends where they end, and checks of what a call wrote to it.
#pragma once

#include "fuzz/input.hpp"

#include <annulus/annulus.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::fuzz {

// The sizes of a call that computes.
struct Sizes {
    annulus_dtype dtype = ANNULUS_FLOAT32;
    std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, head_dim = 8;
    annulus_dtype sum_dtype() const { return dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32; }
};

enum class Use { input, output };

class Tensor {
  public:
    // Makes [B, rows, heads, D] with strides of the input's choice. If `head_dim` is 0, makes a statistic [B, heads,
    // rows].
    Tensor(Input &input, Numbers &numbers, annulus_dtype dtype, std::int64_t batch, std::int64_t rows,
           std::int64_t heads, std::int64_t head_dim, Use use);

    Tensor(const Tensor &other); // with memory of its own if `other` has such
    Tensor &operator=(const Tensor &) = delete;

    // Changes a field or the pointer. `other` is another tensor of the call.
    void spoil(Input &input, const Tensor &other);
    // Fills the tensor with any bytes, which may be NaN or infinite.
    void scramble(Numbers &numbers);
    // Makes the tensor lie where another one lies.
    void alias(const Tensor &other) { view_ = other.view_; }

    // Returns NULL if spoil() chose that.
    const annulus_tensor *get() const { return is_null_ ? nullptr : &view_; }
    annulus_tensor &view() { return view_; }
    const annulus_tensor &view() const { return view_; }
    bool is_null() const { return is_null_; }
    void make_null() { is_null_ = true; }
    // True if all its bytes exist, as a caller claims by passing a tensor.
    bool has_memory() const;
    // True if the first element of `other` lies in this tensor's own memory.
    bool holds(const Tensor &other) const;

    // keep() stores the contents, which must not change from now on. restore() writes them back.
    void keep() { before_ = memory_; }
    void restore() { std::copy(before_.begin(), before_.end(), memory_.begin()); }
    void expect_untouched() const;
    // Fails if a byte between its elements was written.
    void expect_gaps_untouched() const;

    // Returns the elements in the order of their indices.
    std::vector<double> numbers() const;

  private:
    // Allocates memory with `before` bytes before the first element.
    void allocate(std::size_t before = 0);
    // Calls use(byte) for the first byte of each element.
    template <class Use> void for_each(const Use &use) const;

    annulus_tensor view_{};
    bool is_null_ = false;
    std::vector<std::byte> memory_, before_;
    std::vector<std::vector<std::byte>> left_; // memory that spoil() replaced; other tensors may lie in it
    std::int64_t available_ = 0;               // bytes from its data on
};

} // namespace annulus::fuzz
