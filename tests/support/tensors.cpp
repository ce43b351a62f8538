// SPDX-License-Identifier: Apache-2.0
#include "support/tensors.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace annulus::test {
namespace {

// Calls visit(address) for every element, in the order of the shape.
template <class Visitor> void for_each_element(const annulus_tensor &t, const Visitor &visit) {
    std::int64_t shape[4] = {1, 1, 1, 1};
    std::int64_t stride[4] = {0, 0, 0, 0};
    std::copy_n(t.shape, t.ndim, shape);
    std::copy_n(t.stride, t.ndim, stride);
    const auto bytes = static_cast<std::int64_t>(bytes_of(t.dtype));
    for (std::int64_t a = 0; a < shape[0]; ++a)
        for (std::int64_t b = 0; b < shape[1]; ++b)
            for (std::int64_t c = 0; c < shape[2]; ++c)
                for (std::int64_t d = 0; d < shape[3]; ++d) {
                    const std::int64_t element = a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
                    visit(static_cast<unsigned char *>(t.data) + element * bytes);
                }
}

annulus_tensor make_view(void *data, annulus_dtype dtype, std::vector<std::int64_t> shape,
                         std::vector<std::int64_t> stride) {
    annulus_tensor view = {data, dtype, static_cast<std::int32_t>(shape.size()), {0, 0, 0, 0}, {0, 0, 0, 0}};
    std::copy(shape.begin(), shape.end(), view.shape);
    std::copy(stride.begin(), stride.end(), view.stride);
    return view;
}

} // namespace

// The size of the guard aligns the elements to their size and to no larger power of two.
GuardedMemory::GuardedMemory(std::size_t elements, std::size_t element_bytes)
    : guard_(128 + element_bytes), bytes_(2 * guard_ + elements * element_bytes, 0xFF), element_(bytes_.size()) {}

void GuardedMemory::watch(const annulus_tensor &view) {
    const std::size_t bytes = bytes_of(view.dtype);
    for_each_element(view, [&](const unsigned char *address) {
        std::fill_n(element_.data() + (address - bytes_.data()), bytes, static_cast<unsigned char>(0xFF));
    });
}

bool GuardedMemory::intact() const {
    const unsigned char *const bytes = bytes_.data(), *const element = element_.data();
    unsigned char all = 0xFF;
    for (std::size_t i = 0; i < bytes_.size(); ++i)
        all &= bytes[i] | element[i];
    return all == 0xFF;
}

void GuardedMemory::poison() {
    std::fill(bytes_.begin(), bytes_.end(), static_cast<unsigned char>(0xFF));
}

Tensor::Tensor(std::shared_ptr<GuardedMemory> memory, const annulus_tensor &view)
    : memory_(std::move(memory)), view_(view) {
    memory_->watch(view_);
}

std::vector<Tensor> Tensor::rows(Layout layout, annulus_dtype dtype, std::int64_t batch, std::int64_t length,
                                 const std::vector<std::int32_t> &heads, std::int32_t dim) {
    const std::int64_t all_heads = std::accumulate(heads.begin(), heads.end(), std::int64_t{0});
    const std::size_t element_bytes = bytes_of(dtype);
    std::vector<Tensor> tensors;
    std::shared_ptr<GuardedMemory> shared;
    std::int64_t head_in_shared = 0;
    for (const std::int64_t h : heads) {
        const auto make = [&](std::int64_t elements, std::vector<std::int64_t> stride) {
            auto memory = std::make_shared<GuardedMemory>(elements, element_bytes);
            tensors.push_back(
                Tensor(memory, make_view(memory->data(), dtype, {batch, length, h, dim}, std::move(stride))));
        };
        switch (layout) {
        case Layout::rows:
            make(batch * length * h * dim, {length * h * dim, h * dim, dim, 1});
            break;
        case Layout::heads_first:
            make(batch * length * h * dim, {length * h * dim, dim, length * dim, 1});
            break;
        case Layout::gaps: {
            const std::int64_t head = dim + 3;
            const std::int64_t position = h * head + 5;
            const std::int64_t entry = length * position + 7;
            make(batch * entry, {entry, position, head, 1});
            break;
        }
        case Layout::packed: {
            if (!shared)
                shared = std::make_shared<GuardedMemory>(batch * length * all_heads * dim, element_bytes);
            auto *data = static_cast<unsigned char *>(shared->data()) + head_in_shared * dim * element_bytes;
            tensors.push_back(Tensor(shared, make_view(data, dtype, {batch, length, h, dim},
                                                       {length * all_heads * dim, all_heads * dim, dim, 1})));
            head_in_shared += h;
            break;
        }
        }
    }
    return tensors;
}

Tensor Tensor::statistics(Layout layout, annulus_dtype dtype, std::int64_t batch, std::int32_t heads,
                          std::int64_t length) {
    // Positions are adjacent, or heads are adjacent with gaps.
    const bool dense = layout == Layout::rows || layout == Layout::packed;
    const std::int64_t position = dense ? 1 : 2 * heads + 1;
    const std::int64_t head = dense ? length : 2;
    const std::int64_t entry = dense ? heads * length : length * position + 3;
    auto memory = std::make_shared<GuardedMemory>(batch * entry, bytes_of(dtype));
    return Tensor(memory, make_view(memory->data(), dtype, {batch, heads, length}, {entry, head, position}));
}

std::vector<double> Tensor::values() const {
    std::vector<double> values;
    values.reserve(memory_->bytes().size() / bytes_of(view_.dtype));
    for_each_element(view_, [&](const unsigned char *address) { values.push_back(load(view_.dtype, address)); });
    return values;
}

void Tensor::assign(const std::vector<double> &values) {
    std::size_t next = 0;
    for_each_element(view_, [&](unsigned char *address) { store(view_.dtype, address, values.at(next++)); });
    if (next != values.size())
        throw std::invalid_argument("more values than elements");
}

} // namespace annulus::test
