// SPDX-License-Identifier: Apache-2.0
// The ranks agree before a call: that all of them compute the same, and how the sequence is divided among them.
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
    const CallProblem &problem; // its query rows are the rank's own; their start is ignored
    const Shards &shards;       // the rank is ready for these shards; without pieces: it knows no shards yet
    bool shards_are_set;        // true if the caller set `shards`; then the agreed shards must be the same
};

struct Agreement {
    Shards shards; // of all ranks
    bool is_ready; // every rank is ready for these shards
};

// Collective. Throws Error(ANNULUS_ERROR_ARGUMENT), on every rank with the same message, if two ranks intend different
// things or if the shards are impossible.
Agreement agree(Transport &transport, const Intention &intention);

// Collective, after an agreement for which a rank was not ready. Waits until every rank is.
void confirm(Transport &transport);

// Tells the other ranks that this rank cannot do its part. Collective with their agree() or confirm(), which throws
// Error(ANNULUS_ERROR_DECLINED) with the message.
void decline(Transport &transport, const char *message) noexcept;

} // namespace annulus
