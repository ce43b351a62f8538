// SPDX-License-Identifier: Apache-2.0
// The entry of the engine `reference`.
#pragma once

#include "engine/engine.hpp"

namespace annulus {

extern const Engine reference_engine;

} // namespace annulus
