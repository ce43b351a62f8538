// SPDX-License-Identifier: Apache-2.0
// Tests for which head dimensions the engines `fused` and `mma` have kernels, in a build with the given cuda-head-dims.
#include "cuda/fused/mma/kernels.hpp"
#include "cuda/fused/sm90/kernels.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace annulus {
namespace {

// True if the kernel for a head dimension is compiled: the one for the next larger dimension of `all`.
bool is_served(int head_dim, const std::set<int> &all, const std::set<int> &compiled) {
    return compiled.count(*all.lower_bound(head_dim)) > 0;
}

TEST(KernelsOfFused, AreThoseCompiled) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
        EXPECT_EQ(are_compiled(head_dim),
                  is_served(head_dim, {32, 48, 64, 80, 96, 128, 192, 256}, {ANNULUS_SM90_HEAD_DIMS}))
            << head_dim;
}

TEST(KernelsOfMma, AreThoseCompiled) {
    constexpr mma::SharedCapacity capacities[] = {ANNULUS_SHARED_CAPACITIES};
    const std::map<annulus_dtype, std::set<int>> all = {{ANNULUS_FLOAT32, {32, 64, 96, 128, 192, 256}},
                                                        {ANNULUS_BFLOAT16, {32, 48, 64, 96, 128, 192, 256}},
                                                        {ANNULUS_FLOAT16, {32, 48, 64, 96, 128, 192, 256}}};
    for (const mma::SharedCapacity capacity : capacities)
        for (const auto &[dtype, head_dims] : all)
            for (int head_dim = 8; head_dim <= 256; head_dim += 8)
                EXPECT_EQ(mma::are_compiled(capacity, dtype, head_dim),
                          is_served(head_dim, head_dims, {ANNULUS_MMA_HEAD_DIMS}))
                    << capacity_bytes(capacity) << " " << dtype << " " << head_dim;
}

} // namespace
} // namespace annulus
