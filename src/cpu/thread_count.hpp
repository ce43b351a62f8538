// SPDX-License-Identifier: Apache-2.0
// How many threads a call may use where the caller does not say it.
#pragma once

#include <filesystem>

namespace annulus {

inline constexpr int max_threads = 1024;

// The number of CPUs that the calling thread, and so a thread that it starts, may run on: from 1 to max_threads.
int allowed_cpus();

// The CPU time that the cgroups of the process, v1 or v2, and the parents of these leave it, in CPUs, rounded up: from
// 1 to max_threads, which it is where there is no quota. Files are looked for below `root`.
int cpu_quota(const std::filesystem::path &root = "/");

// What ANNULUS_NUM_THREADS says, or 0 where it is not set. Throws Error(ANNULUS_ERROR_ARGUMENT) unless that is a number
// from 1 to max_threads.
int environment_threads();

} // namespace annulus
