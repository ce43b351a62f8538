// SPDX-License-Identifier: Apache-2.0
#include "cpu/clear_rows.hpp"

#include "core/dtype_number.hpp"
#include "core/tensor.hpp"
#include "cpu/parallel.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace annulus {

namespace {

// Writes zeros, which are the same bytes in every dtype.
void clear_tensor(const annulus_tensor &tensor, int threads) {
    const std::int64_t element = dtype_bytes(tensor.dtype), rows = tensor.shape[1];
    parallel_for(threads, tensor.shape[0] * rows, [&](std::int64_t item, int) {
        const std::int64_t offset = item / rows * tensor.stride[0] + item % rows * tensor.stride[1];
        for (std::int64_t head = 0; head < tensor.shape[2]; ++head)
            std::memset(static_cast<std::byte *>(tensor.data) + (offset + head * tensor.stride[2]) * element, 0,
                        static_cast<std::size_t>(tensor.shape[3] * element));
    });
}

template <class T> void clear_lse(const annulus_tensor &lse) {
    for (std::int64_t b = 0; b < lse.shape[0]; ++b)
        for (std::int64_t head = 0; head < lse.shape[1]; ++head)
            for (std::int64_t n = 0; n < lse.shape[2]; ++n)
                *statistic<T>(lse, b, head, n) = -std::numeric_limits<T>::infinity();
}

} // namespace

void clear_rows(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &, const Limits &limits,
                void *) {
    if (pass == ANNULUS_PASS_FORWARD) {
        clear_tensor(tensors.out, limits.threads);
        if (tensors.lse)
            tensors.lse->dtype == ANNULUS_FLOAT64 ? clear_lse<double>(*tensors.lse) : clear_lse<float>(*tensors.lse);
        return;
    }
    const auto clear = [&](const GradientTarget &target, const annulus_tensor &gradient) {
        if (!target.adds)
            clear_tensor(gradient, limits.threads);
    };
    if (!problem.gradients.only_v) {
        clear(problem.gradients.q, tensors.d_q);
        clear(problem.gradients.k, tensors.d_k);
    }
    clear(problem.gradients.v, tensors.d_v);
}

} // namespace annulus
