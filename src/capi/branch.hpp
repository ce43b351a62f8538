// SPDX-License-Identifier: Apache-2.0
// The caller's struct of a branch.
#pragma once

#include "core/pattern.hpp"

#include <annulus/config.h>

#include <cstdint>

namespace annulus {

// Checks every field on its own, and the fields against the branch's kind. Returns the branch.
Branch checked_branch(const annulus_branch *branch);

// Writes branch `index` of a config to the caller's struct. Throws if the struct is too short to hold its kind.
void write_branch(const Branch &found, std::int32_t index, annulus_branch *branch);

} // namespace annulus
