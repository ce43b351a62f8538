// SPDX-License-Identifier: Apache-2.0
// Asks for estimates of problems of any size. Nothing is computed.
#pragma once

#include "fuzz/abi/handles.hpp"

namespace annulus::fuzz {

void ask_estimate(Input &input, Handles &handles);
void ask_workspace(Input &input, Handles &handles);
void ask_rank(Input &input, Handles &handles);
void ask_balance(Input &input, Handles &handles);
void ask_curve(Input &input);

} // namespace annulus::fuzz
