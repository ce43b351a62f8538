// SPDX-License-Identifier: Apache-2.0
// Makes calls that compute, on tiny problems, and checks their results.
#pragma once

#include "fuzz/abi/handles.hpp"

namespace annulus::fuzz {

// Makes one forward, backward or mass call, legal or not. Compares it with the engine `reference` if both can be exact.
void call_pass(Input &input, Handles &handles, annulus_pass pass);

// Makes one call of annulus_merge() and compares it with its formula.
void call_merge(Input &input, Handles &handles);

} // namespace annulus::fuzz
