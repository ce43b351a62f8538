// SPDX-License-Identifier: Apache-2.0
// Rows that attend to nothing, for the engines on a CPU: Engine::clear().
#pragma once

#include "engine/engine.hpp"

namespace annulus {

void clear_rows(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &device,
                const Limits &limits, void *stream);

} // namespace annulus
