// SPDX-License-Identifier: Apache-2.0
// The options that say where and how a command computes.
#pragma once

#include "cli/devices/handles.hpp"
#include "cli/report/options.hpp"

#include <cstdint>
#include <string>

namespace annulus::cli {

inline constexpr annulus_engine engines[] = {ANNULUS_ENGINE_AUTO, ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU,
                                             ANNULUS_ENGINE_GEMM, ANNULUS_ENGINE_FUSED,     ANNULUS_ENGINE_MMA};

struct ExecutionOptions {
    DeviceChoice device;
    std::string engine;
    std::string exchange;
    std::int32_t threads = 0;
    bool allow_tf32 = false;
    std::uint64_t workspace_limit = 0; // bytes; 0: the engine's own choice

    void add_to(Command &command);
    // Sets all options in the config except the device and the threads, which belong to the context.
    void apply_to(annulus_config *config) const;
    // Returns how many threads compute: the number that the user asked for, or else the library's default.
    int thread_count() const;
};

// Returns the name of an exchange, as --exchange takes it.
std::string exchange_name(annulus_exchange exchange);

} // namespace annulus::cli
