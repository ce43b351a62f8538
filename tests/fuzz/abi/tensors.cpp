// SPDX-License-Identifier: Apache-2.0
#include "fuzz/abi/tensors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace annulus::fuzz {

namespace {

constexpr std::int64_t max_bytes = 1 << 20;

// Converts a float16 slowly and plainly, independent of the library.
double half_value(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction ? std::nan("") : std::numeric_limits<double>::infinity())
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

double load(annulus_dtype dtype, const std::byte *from) {
    const auto as = [&](auto number) {
        std::memcpy(&number, from, sizeof number);
        return number;
    };
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return as(double{});
    case ANNULUS_FLOAT32:
        return as(float{});
    case ANNULUS_BFLOAT16:
        return std::bit_cast<float>(std::uint32_t{as(std::uint16_t{})} << 16);
    default:
        return half_value(as(std::uint16_t{}));
    }
}

// Stores a number that every dtype represents exactly (Numbers::real()).
void store(annulus_dtype dtype, double value, std::byte *to) {
    const auto as = [&](auto number) { std::memcpy(to, &number, sizeof number); };
    const auto single = static_cast<float>(value);
    const auto bits = std::bit_cast<std::uint32_t>(single);
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return as(value);
    case ANNULUS_FLOAT32:
        return as(single);
    case ANNULUS_BFLOAT16:
        return as(static_cast<std::uint16_t>(bits >> 16));
    default:
        return as(static_cast<std::uint16_t>(
            value == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023)));
    }
}

std::int64_t element_bytes(const annulus_tensor &tensor) {
    return std::max(annulus_dtype_bits(tensor.dtype) / 8, 1);
}

// Returns the bytes from the first element to the end of the last, or -1 if the tensor is not valid.
std::int64_t extent(const annulus_tensor &tensor) {
    if (tensor.ndim < 0 || tensor.ndim > 4)
        return -1;
    __int128 elements = 1;
    for (int i = 0; i < tensor.ndim; ++i) {
        if (tensor.shape[i] <= 0 || tensor.stride[i] < 0)
            return tensor.shape[i] == 0 ? 0 : -1;
        elements += static_cast<__int128>(tensor.shape[i] - 1) * tensor.stride[i];
        if (elements > std::numeric_limits<std::int64_t>::max() / 8)
            return std::numeric_limits<std::int64_t>::max();
    }
    return static_cast<std::int64_t>(elements) * element_bytes(tensor);
}

} // namespace

template <class Use> void Tensor::for_each(const Use &use) const {
    std::int64_t shape[] = {1, 1, 1, 1}, stride[] = {0, 0, 0, 0};
    for (int i = 0; i < view_.ndim; ++i) {
        shape[i] = view_.shape[i];
        stride[i] = view_.stride[i];
    }
    for (std::int64_t a = 0; a < shape[0]; ++a)
        for (std::int64_t b = 0; b < shape[1]; ++b)
            for (std::int64_t c = 0; c < shape[2]; ++c)
                for (std::int64_t d = 0; d < shape[3]; ++d)
                    use(static_cast<std::size_t>((a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]) *
                                                 element_bytes(view_)));
}

Tensor::Tensor(Input &input, Numbers &numbers, annulus_dtype dtype, std::int64_t batch, std::int64_t rows,
               std::int64_t heads, std::int64_t head_dim, Use use) {
    const bool is_statistic = head_dim == 0;
    view_ = {nullptr, dtype, is_statistic ? 3 : 4, {batch, rows, heads, head_dim}, {}};
    if (is_statistic)
        std::swap(view_.shape[1], view_.shape[2]);
    // Dimensions from the outermost in memory to the innermost, with gaps between them.
    int order[] = {0, 1, 2, 3};
    if (input.once_in(3))
        std::swap(order[1], order[2]);
    if (input.once_in(8))
        std::swap(order[0], order[2]);
    if (is_statistic && input.once_in(8))
        std::swap(order[0], order[1]);
    std::int64_t stride = 1;
    for (int i = view_.ndim; i-- > 0;) {
        const int dimension = order[i];
        if (dimension >= view_.ndim) // a statistic has no such dimension
            continue;
        view_.stride[dimension] = stride;
        stride = stride * std::max<std::int64_t>(view_.shape[dimension], 1) + (input.once_in(6) ? input.below(9) : 0);
    }
    if (use == Use::input && input.once_in(8))
        view_.stride[input.below(view_.ndim - 1)] = 0;
    allocate();
    for_each([&](std::size_t at) { store(dtype, numbers.real(), memory_.data() + at); });
    before_ = memory_;
}

Tensor::Tensor(const Tensor &other)
    : view_(other.view_), is_null_(other.is_null_), memory_(other.memory_), before_(other.before_),
      available_(other.available_) {
    if (view_.data && other.holds(other))
        view_.data = memory_.data() + (static_cast<const std::byte *>(view_.data) - other.memory_.data());
}

void Tensor::allocate(std::size_t before) {
    const std::int64_t bytes = std::clamp<std::int64_t>(extent(view_), 0, max_bytes);
    memory_ = std::vector<std::byte>(before + static_cast<std::size_t>(bytes), std::byte{0x55});
    before_ = memory_;
    view_.data = memory_.data() + before;
    available_ = bytes;
}

void Tensor::scramble(Numbers &numbers) {
    for (std::byte &byte : memory_)
        byte = static_cast<std::byte>(numbers.next());
    before_ = memory_;
}

void Tensor::spoil(Input &input, const Tensor &other) {
    const int dimension = input.below(4);
    int before = 0;
    switch (input.below(8)) {
    case 0:
        is_null_ = true;
        return;
    case 1:
        view_.data = nullptr;
        return;
    case 2:
        before = 1 + input.below(15);
        break;
    case 3: // keeps its own shape
        view_.data = other.view_.data;
        available_ = other.available_;
        return;
    case 4:
        view_.ndim = static_cast<std::int32_t>(input.any_number());
        return;
    case 5:
        view_.dtype = static_cast<annulus_dtype>(input.once_in(2) ? input.below(6) : input.any_number());
        break;
    case 6:
        view_.shape[dimension] = input.once_in(2) ? input.below(20) : input.any_number();
        break;
    case 7:
        view_.stride[dimension] = input.once_in(2) ? input.below(40) : input.any_number();
        break;
    }
    left_.push_back(std::move(memory_));
    allocate(static_cast<std::size_t>(before));
}

bool Tensor::has_memory() const {
    const std::int64_t bytes = is_null_ || !view_.data ? 0 : extent(view_);
    return bytes >= 0 && bytes <= available_;
}

bool Tensor::holds(const Tensor &other) const {
    const auto *const data = static_cast<const std::byte *>(other.view_.data);
    return data >= memory_.data() && data <= memory_.data() + memory_.size();
}

void Tensor::expect_untouched() const {
    EXPECT(memory_ == before_, "a tensor was written");
}

void Tensor::expect_gaps_untouched() const {
    if (is_null_)
        return;
    if (!holds(*this)) // it lies elsewhere
        return expect_untouched();
    std::vector<std::byte> after = memory_;
    const auto bytes = static_cast<std::size_t>(element_bytes(view_));
    const auto first = static_cast<std::size_t>(static_cast<const std::byte *>(view_.data) - memory_.data());
    for_each([&](std::size_t at) { std::copy_n(before_.data() + first + at, bytes, after.data() + first + at); });
    EXPECT(after == before_, "bytes between the elements of a tensor were written");
}

std::vector<double> Tensor::numbers() const {
    std::vector<double> all;
    const auto *const data = static_cast<const std::byte *>(view_.data);
    for_each([&](std::size_t at) { all.push_back(load(view_.dtype, data + at)); });
    return all;
}

} // namespace annulus::fuzz
