// SPDX-License-Identifier: Apache-2.0
// Checks of the caller's tensors: each tensor alone, and outputs against all other tensors.
#include "core/tensor.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace annulus {

namespace {

std::uintptr_t address(const void *memory) {
    return reinterpret_cast<std::uintptr_t>(memory);
}

// Returns the bytes from the first element to the end of the last one. The tensor was checked.
std::uintptr_t extent_bytes(const annulus_tensor &tensor) {
    std::int64_t elements = 1;
    for (int i = 0; i < tensor.ndim; ++i)
        elements += (tensor.shape[i] - 1) * tensor.stride[i];
    return static_cast<std::uintptr_t>(elements) * static_cast<std::uintptr_t>(dtype_bytes(enum_value(tensor.dtype)));
}

// True if the tensor fits into the address space behind its data pointer. Checks both its number of bytes by its shape
// and the distance that its strides reach.
bool fits_address_space(const annulus_tensor &tensor) {
    const std::int64_t bytes = dtype_bytes(enum_value(tensor.dtype));
    std::int64_t counted = bytes;
    std::int64_t reached = bytes;
    for (int i = 0; i < tensor.ndim; ++i) {
        std::int64_t last;
        if (__builtin_mul_overflow(counted, tensor.shape[i], &counted) ||
            __builtin_mul_overflow(tensor.shape[i] - 1, tensor.stride[i], &last) ||
            __builtin_mul_overflow(last, bytes, &last) || __builtin_add_overflow(reached, last, &reached))
            return false;
    }
    const std::uintptr_t limit = std::min<std::uintptr_t>(PTRDIFF_MAX, UINTPTR_MAX - address(tensor.data));
    return static_cast<std::uint64_t>(reached) <= limit && static_cast<std::uint64_t>(counted) <= PTRDIFF_MAX;
}

// True if no two indices reach the same element. Sorted by stride, each dimension must step over all that lies inside
// it. Slicing, reshaping and transposing give no other layouts with distinct elements.
bool elements_are_distinct(const annulus_tensor &tensor) {
    struct Dimension {
        std::int64_t stride = 0, count = 1;
    };
    std::array<Dimension, 4> dimensions;
    for (int i = 0; i < tensor.ndim; ++i)
        dimensions[static_cast<std::size_t>(i)] = {tensor.stride[i], tensor.shape[i]};
    std::sort(dimensions.begin(), dimensions.end(),
              [](const Dimension &a, const Dimension &b) { return a.stride < b.stride; });
    std::int64_t inner = 1;
    for (const Dimension &dimension : dimensions) {
        if (dimension.count == 1)
            continue;
        if (dimension.stride < inner)
            return false;
        inner += (dimension.count - 1) * dimension.stride;
    }
    return true;
}

// The multiples stride * d with lowest <= d <= highest.
struct Step {
    std::int64_t stride = 1, lowest = 0, highest = 0;
};

// True if the sum of one multiple from each step can be `target`. Steps are sorted, longest stride first. The recursion
// visits only values of d for which the shorter strides can still reach the target. They are few if both tensors step
// over their inner dimensions. (Division rounds towards zero: that may visit one d too many, never one too few.)
bool sum_can_be(const Step *first, const Step *last, std::int64_t target) {
    if (first == last)
        return target == 0;
    std::int64_t low = 0;
    std::int64_t high = 0;
    for (const Step *inner = first + 1; inner != last; ++inner) {
        low += inner->stride * inner->lowest;
        high += inner->stride * inner->highest;
    }
    const std::int64_t begin = std::max(first->lowest, (target - high) / first->stride);
    const std::int64_t end = std::min(first->highest, (target - low) / first->stride);
    for (std::int64_t d = begin; d <= end; ++d)
        if (sum_can_be(first + 1, last, target - first->stride * d))
            return true;
    return false;
}

bool strides_agree(const annulus_tensor &a, const annulus_tensor &b) {
    if (enum_value(a.dtype) != enum_value(b.dtype) || a.ndim != b.ndim)
        return false;
    for (int i = 0; i < a.ndim; ++i)
        if (a.shape[i] > 1 && b.shape[i] > 1 && a.stride[i] != b.stride[i])
            return false;
    return true;
}

// True if `a` and `b` may share an element. Exact if their strides agree and each has distinct elements. Otherwise true
// whenever their byte ranges meet.
bool overlap(const annulus_tensor &a, const annulus_tensor &b) {
    if (!meets(a, b.data, extent_bytes(b)))
        return false;
    if (!strides_agree(a, b) || !elements_are_distinct(a) || !elements_are_distinct(b))
        return true;
    // Element i of a is element j of b if the sum of stride * (i - j) is the offset of b's first element from a's.
    std::array<Step, 4> steps;
    for (int i = 0; i < a.ndim; ++i)
        if (a.shape[i] > 1 || b.shape[i] > 1)
            steps[static_cast<std::size_t>(i)] = {a.shape[i] > 1 ? a.stride[i] : b.stride[i], 1 - b.shape[i],
                                                  a.shape[i] - 1};
    std::sort(steps.begin(), steps.end(), [](const Step &x, const Step &y) { return x.stride > y.stride; });
    const std::int64_t offset = static_cast<std::int64_t>(address(b.data) - address(a.data)) /
                                dtype_bytes(enum_value(a.dtype)); // both are aligned
    return sum_can_be(steps.data(), steps.data() + steps.size(), offset);
}

[[noreturn]] void report_overlap(const NamedTensor &a, const NamedTensor &b) {
    throw Error(
        ANNULUS_ERROR_ARGUMENT,
        "%s overlaps %s; an output needs memory of its own, and may interleave only with tensors of its strides",
        a.name, b.name);
}

} // namespace

bool is_empty(const annulus_tensor &tensor) {
    return std::any_of(tensor.shape, tensor.shape + tensor.ndim, [](std::int64_t extent) { return extent == 0; });
}

void check_tensor(const NamedTensor &argument, annulus_dtype dtype, std::initializer_list<std::int64_t> shape,
                  bool unit_last, bool may_be_empty) {
    const char *const name = argument.name;
    if (!argument.tensor)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is NULL; it must be a tensor", name);
    const annulus_tensor &tensor = *argument.tensor;
    const int ndim = static_cast<int>(shape.size());
    const bool empty = may_be_empty && tensor.ndim == ndim && is_empty(tensor);
    if (!tensor.data && !empty)
        throw Error(ANNULUS_ERROR_ARGUMENT, "data of %s is NULL; it must point to the tensor's first element", name);
    const int given = enum_value(tensor.dtype);
    if (given != dtype)
        throw Error(ANNULUS_ERROR_ARGUMENT, "dtype of %s is %d (%s); it must be %d (%s)", name, given,
                    dtype_name(given), static_cast<int>(dtype), dtype_name(dtype));
    if (tensor.ndim != ndim)
        throw Error(ANNULUS_ERROR_ARGUMENT, "ndim of %s is %d; it must be %d", name, tensor.ndim, ndim);
    for (int i = 0; i < ndim; ++i) {
        const auto extent = static_cast<long long>(tensor.shape[i]);
        if (extent < (empty ? 0 : 1))
            throw Error(ANNULUS_ERROR_ARGUMENT, "shape[%d] of %s is %lld; it must be at least 1", i, name, extent);
        if (extent != shape.begin()[i])
            throw Error(ANNULUS_ERROR_ARGUMENT, "shape[%d] of %s is %lld; it must be %lld", i, name, extent,
                        static_cast<long long>(shape.begin()[i]));
        if (tensor.stride[i] < 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "stride[%d] of %s is %lld; it must not be negative", i, name,
                        static_cast<long long>(tensor.stride[i]));
    }
    if (empty)
        return;
    if (unit_last && tensor.stride[ndim - 1] != 1)
        throw Error(ANNULUS_ERROR_ARGUMENT, "stride[%d] of %s is %lld; it must be 1", ndim - 1, name,
                    static_cast<long long>(tensor.stride[ndim - 1]));
    const int bytes = dtype_bytes(given);
    if ((address(tensor.data) & static_cast<std::uintptr_t>(bytes - 1)) != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "data of %s is %p; it must be aligned to %d bytes", name, tensor.data,
                    bytes);
    if (!fits_address_space(tensor))
        throw Error(ANNULUS_ERROR_ARGUMENT, "shape and strides of %s reach beyond the address space", name);
}

bool meets(const annulus_tensor &tensor, const void *memory, std::size_t bytes) {
    const std::uintptr_t first = address(tensor.data), other = address(memory);
    return first < other + bytes && other < first + extent_bytes(tensor);
}

bool same_elements(const annulus_tensor &a, const annulus_tensor &b) {
    return a.data == b.data && strides_agree(a, b);
}

void check_overlap(std::initializer_list<NamedTensor> inputs, std::initializer_list<NamedTensor> outputs) {
    for (const NamedTensor *output = outputs.begin(); output != outputs.end(); ++output) {
        if (!output->tensor || is_empty(*output->tensor))
            continue;
        if (!elements_are_distinct(*output->tensor))
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "strides of %s let two indices reach one element; the elements of an output must be distinct",
                        output->name);
        for (const NamedTensor &input : inputs)
            if (input.tensor && !is_empty(*input.tensor) && overlap(*output->tensor, *input.tensor))
                report_overlap(*output, input);
        for (const NamedTensor *other = outputs.begin(); other != output; ++other)
            if (other->tensor && !is_empty(*other->tensor) && overlap(*output->tensor, *other->tensor))
                report_overlap(*other, *output);
    }
}

} // namespace annulus
