// SPDX-License-Identifier: Apache-2.0
// How one producer warpgroup and the consumer warpgroups share a CTA's registers.
#pragma once

namespace annulus {

// In registers of a thread. They can only move within what the CTA starts with: taking more would hang.
template <int consumers, int producer_ = consumers == 3 ? 32 : 40> struct WarpgroupRegisters {
    static constexpr int threads = (consumers + 1) * 128;
    static constexpr int started = 65536 / threads / 8 * 8;
    static constexpr int producer = producer_;
    static constexpr int consumer = ((consumers + 1) * started - producer) / consumers / 8 * 8;
    static_assert(producer + consumers * consumer <= (consumers + 1) * started);
};

} // namespace annulus
