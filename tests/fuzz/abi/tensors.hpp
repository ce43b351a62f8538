// SPDX-License-Identifier: Apache-2.0
// Tensors of a call in memory that ends where they end, and what a call may do to it.
#pragma once

#include "fuzz/input.hpp"

#include <annulus/annulus.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::fuzz {

// Sizes of a call that computes.
struct Sizes {
    annulus_dtype dtype = ANNULUS_FLOAT32;
    std::int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, head_dim = 8;
    annulus_dtype sum_dtype() const { return dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32; }
};

enum class Use { input, output };

class Tensor {
  public:
    // [B, rows, heads, D] of some strides, or where `head_dim` is 0 a statistic [B, heads, rows].
    Tensor(Input &input, Numbers &numbers, annulus_dtype dtype, std::int64_t batch, std::int64_t rows,
           std::int64_t heads, std::int64_t head_dim, Use use);

    Tensor(const Tensor &other); // with memory of its own, where other has such
    Tensor &operator=(const Tensor &) = delete;

    // Changes a field into something else, or the pointer. `other` is another tensor of the call.
    void spoil(Input &input, const Tensor &other);
    // Any bytes, which may be NaN or infinite.
    void scramble(Numbers &numbers);
    // Lies where another lies.
    void alias(const Tensor &other) { view_ = other.view_; }

    // NULL where it was spoilt so.
    const annulus_tensor *get() const { return is_null_ ? nullptr : &view_; }
    annulus_tensor &view() { return view_; }
    const annulus_tensor &view() const { return view_; }
    bool is_null() const { return is_null_; }
    void make_null() { is_null_ = true; }
    // Whether its bytes are all there, as a caller says by handing a tensor over.
    bool has_memory() const;
    // Whether another's first element lies in the memory that is this one's own.
    bool holds(const Tensor &other) const;

    // What it holds now is what is not to change, and comes back by restore().
    void keep() { before_ = memory_; }
    void restore() { std::copy(before_.begin(), before_.end(), memory_.begin()); }
    void expect_untouched() const;
    // Nothing between its elements was written.
    void expect_gaps_untouched() const;

    // Elements in the order of their indices.
    std::vector<double> numbers() const;

  private:
    // `before` bytes lie before its first element.
    void allocate(std::size_t before = 0);
    // use(byte) of the first byte of each element.
    template <class Call> void for_each(const Call &use) const;

    annulus_tensor view_{};
    bool is_null_ = false;
    std::vector<std::byte> memory_, before_;
    std::vector<std::vector<std::byte>> left_; // what spoil() replaced, where other tensors may lie by now
    std::int64_t available_ = 0;               // bytes from its data on
};

} // namespace annulus::fuzz
