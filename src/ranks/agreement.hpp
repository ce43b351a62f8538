// SPDX-License-Identifier: Apache-2.0
// Whether all ranks are about to do the same, and how the sequence is shared among them.
#pragma once

#include "core/pattern.hpp"
#include "core/sequences.hpp"
#include "ranks/schedule.hpp"
#include "transport/transport.hpp"

#include <annulus/attention.h>

#include <cstdint>
#include <vector>

namespace annulus {

// What a rank is about to do.
struct Intention {
    annulus_pass pass;
    const Pattern &pattern;
    annulus_exchange exchange;
    const CallProblem &problem; // its query rows are the rank's own; where they lie does not matter
    const Shards &shards;       // that the rank is ready for; without pieces: it knows of none yet
    bool shards_are_set;        // by the caller: the shards must be these
};

struct Agreement {
    Shards shards; // of all ranks
    bool is_ready; // all ranks are ready for these
};

// Collective. Throws on every rank, with the same message, where two ranks intend different things, or where there are
// no such shards: Error(ANNULUS_ERROR_ARGUMENT).
Agreement agree(Transport &transport, const Intention &intention);

// Collective, after an agreement for which not all ranks were ready: now they are.
void confirm(Transport &transport);

// Collective with the others' agree() or confirm(), for a rank that cannot do its part: they throw
// Error(ANNULUS_ERROR_DECLINED) with the message. Throws nothing of its own.
void decline(Transport &transport, const char *message) noexcept;

} // namespace annulus
