// SPDX-License-Identifier: Apache-2.0
// The entry of the engine `cpu`.
#pragma once

#include "engine/engine.hpp"

namespace annulus {

extern const Engine cpu_engine;

} // namespace annulus
