// SPDX-License-Identifier: Apache-2.0
// The backends of this process: the CPU's is part of the library, CUDA's comes from the plugin.
#pragma once

#include "engine/backend.hpp"

#include <annulus/config.h>
#include <annulus/context.h>

namespace annulus {

// Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the reason if there is none for the kind of device.
const Backend &find_backend(annulus_device device);

// Returns how many devices of the kind this process can use; 0 if there is no backend for it.
int device_count(annulus_device device);

// Throws Error(ANNULUS_ERROR_UNSUPPORTED) if the backend has no such engine.
void check_has_engine(const Backend &backend, annulus_engine engine);

} // namespace annulus
