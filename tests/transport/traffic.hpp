// SPDX-License-Identifier: Apache-2.0
// The same checks for every transport. Each rank calls with its own end. What it receives is compared with what the
// other ranks must have sent, which follows from the seed alone.
#pragma once

#include "transport/transport.hpp"

#include <functional>
#include <string>

void check_gathers(annulus::Transport &transport, unsigned seed);

// Checks random batches between random pairs of ranks, with up to three batches in flight.
void check_exchanges(annulus::Transport &transport, annulus::Device &device, unsigned seed);

// Checks that the call throws annulus::Error with this status and message.
void expect_error(annulus_status status, const std::string &message, const std::function<void()> &call);
