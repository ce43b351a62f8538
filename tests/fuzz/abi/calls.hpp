// SPDX-License-Identifier: Apache-2.0
// The calls that compute, on tiny problems, and what their results must be.
#pragma once

#include "fuzz/abi/handles.hpp"

namespace annulus::fuzz {

// One forward, backward or mass call, legal or not, compared with the engine `reference` where both can be exact.
void call_pass(Input &input, Handles &handles, annulus_pass pass);

// One call of annulus_merge(), compared with its formula.
void call_merge(Input &input, Handles &handles);

} // namespace annulus::fuzz
