// SPDX-License-Identifier: Apache-2.0
// The entry of the engine `gemm`.
#pragma once

#include "engine/engine.hpp"

namespace annulus {

extern const Engine gemm_engine;

} // namespace annulus
