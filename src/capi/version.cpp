// SPDX-License-Identifier: Apache-2.0
// annulus/version.h.
#include <annulus/version.h>

#include "capi/guard.hpp"
#include "core/version.hpp"
#include "cpu/simd/simd.hpp"
#include "engine/device.hpp"
#include "transport/mpi_plugin.hpp"

#include <array>
#include <cstdio>

#if defined(__clang__)
#define ANNULUS_COMPILER __VERSION__
#else
#define ANNULUS_COMPILER "GCC " __VERSION__
#endif

int annulus_version(void) {
    return ANNULUS_VERSION;
}

const char *annulus_version_string(void) {
    return annulus::version_text;
}

const char *annulus_build_info(void) {
    const annulus::CancellationOff cancellation_off; // it may load plugins
    static const auto line = []() noexcept {
        std::array<char, 512> text{};
        std::snprintf(text.data(), text.size(), "annulus %s, compiler %s, vector instructions %s, CUDA %s, MPI %s",
                      annulus_version_string(), ANNULUS_COMPILER, annulus::simd_name(), annulus::cuda_description(),
                      annulus::mpi_description());
        return text;
    }();
    return line.data();
}
