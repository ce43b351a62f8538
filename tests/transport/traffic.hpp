// SPDX-License-Identifier: Apache-2.0
// Traffic that is the same for every transport. Each rank calls with its own end; what it gets is compared with what
// the others must have sent, which follows from the seed alone.
#pragma once

#include "transport/transport.hpp"

void check_gathers(annulus::Transport &transport, unsigned seed);

// Random batches between random pairs, up to three of them in flight.
void check_exchanges(annulus::Transport &transport, annulus::Device &device, unsigned seed);
