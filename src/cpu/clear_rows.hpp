// SPDX-License-Identifier: Apache-2.0
// Engine::clear() of the CPU engines: clears rows that attend to nothing.
#pragma once

#include "engine/engine.hpp"

namespace annulus {

void clear_rows(const Problem &problem, annulus_pass pass, const CallTensors &tensors, Device &device,
                const Limits &limits, void *stream);

} // namespace annulus
