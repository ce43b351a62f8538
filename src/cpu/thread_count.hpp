// SPDX-License-Identifier: Apache-2.0
// How many threads a call may use if the caller does not say it.
#pragma once

#include <filesystem>

namespace annulus {

inline constexpr int max_threads = 1024;

// Returns the number of CPUs on which the calling thread, and any thread that it starts, may run: 1 to max_threads.
int allowed_cpus();

// Returns the CPU time, in CPUs rounded up, that the process's cgroups (v1 or v2) and their parents allow: 1 to
// max_threads. It is max_threads if there is no quota. `root` is the directory in which /proc and mounts are looked up.
int cpu_quota(const std::filesystem::path &root = "/");

// Returns the value of ANNULUS_NUM_THREADS, or 0 if it is not set. Throws Error(ANNULUS_ERROR_ARGUMENT) if it is not a
// number from 1 to max_threads.
int environment_threads();

} // namespace annulus
