// SPDX-License-Identifier: Apache-2.0
// Whether all ranks are about to do the same.
#pragma once

#include "core/pattern.hpp"
#include "core/plan.hpp"
#include "ring/transport.hpp"

#include <annulus/attention.h>

#include <vector>

namespace annulus {

// What a rank is about to do.
struct Intention {
    annulus_pass pass;
    const Pattern &pattern;
    annulus_exchange exchange;
    const Problem &problem; // its windows are the rank's shard
    const std::vector<Window> &shards;
};

// Collective. Throws on every rank, with the same message but for who speaks, where two ranks intend different things:
// Error(ANNULUS_ERROR_ARGUMENT).
void agree(Transport &transport, const Intention &intention);

// Collective with the others' agree(), for a rank whose own arguments are bad: they throw Error(ANNULUS_ERROR_COMM)
// with the message. Throws nothing of its own.
void decline(Transport &transport, const char *message) noexcept;

} // namespace annulus
