// SPDX-License-Identifier: Apache-2.0
// Measured constants of the times that `annulus plan` predicts. Each says what was measured, on which GPU, by which
// program. doc/performance.md has the measurements.
#pragma once

#include <cstdint>

namespace annulus::cli::tuning {

// FLOP/s at a head dimension.
struct Rate {
    std::int32_t head_dim;
    double forward, backward;
};

// Two numbers, for forward and for backward.
struct Passes {
    double forward, backward;
};

// The time of an engine's kernels (kernel_time.hpp) on an H100.
struct Kernels {
    Rate rates[4]; // by head dimension, ascending
    // Time of a query beside its pairs, in pairs: in the branch with the smallest dilation, and in every other branch.
    Passes first_pairs, further_pairs;
    Passes launch_seconds; // of a call
};

// Bfloat16 and float16. A fit to 42 times of `annulus bench --device cuda --dtype bfloat16` and
// tests/benchmarks/peers.py in doc/performance.md. Its error is 12 % forward and 8 % backward (root mean square). For
// the 12 problems of "Several GPUs" on one GPU it is 6 % and 7 %, and at most 10 % and 17 %.
inline constexpr Kernels fused = {
    {{32, 219e12, 215e12}, {48, 389e12, 362e12}, {64, 587e12, 488e12}, {128, 764e12, 569e12}},
    {0, 250},
    {965, 1120},
    {27e-6, 53e-6}};
// Bfloat16 and float16, `tests/benchmarks/peers.py --engine mma`. The rates are those of 16384:1; that of D = 48 is
// three quarters of that of D = 64, since rows are padded. The pairs of further branches are from LongNet at 262,144
// tokens. Nothing was measured at D = 32.
inline constexpr Kernels mma = {
    {{32, 145e12, 120e12}, {48, 218e12, 180e12}, {64, 290e12, 240e12}, {128, 325e12, 288e12}},
    {0, 0},
    {300, 900},
    {27e-6, 53e-6}};
// Float32, `annulus bench --dtype float32 --engine mma`: 2048:1. Nothing was measured at D = 32.
inline constexpr Kernels mma_float32 = {
    {{32, 28e12, 22e12}, {48, 43e12, 33e12}, {64, 57e12, 44e12}, {128, 55e12, 40e12}}, {0, 0}, {0, 0}, {27e-6, 53e-6}};

// The same with --tf32.
inline constexpr Kernels mma_tf32 = {
    {{32, 55e12, 46e12}, {48, 82e12, 70e12}, {64, 109e12, 93e12}, {128, 106e12, 72e12}},
    {0, 0},
    {0, 0},
    {27e-6, 53e-6}};

// Time of a query at a bound of its keys, in pairs: blocks of 64 queries and 128 keys are computed whole, and masked.
// H200, `annulus bench --device cuda --dtype bfloat16 --causal`: LongNet at 65,536 and 262,144 tokens.
inline constexpr Passes bound_pairs = {128, 160};

// Time of the launches for one message of rows, however few rows it has. H100, `annulus bench --device cuda --ranks 2`,
// LongNet 2048:1 to 524288:256: the launches over the other GPU's keys and the unfinished rows (doc/notes/ranks.md).
inline constexpr Passes message_seconds = {85e-6, 220e-6};
// What a rank that receives rows takes beyond the kernels' time, as a share of it: launches end with idle
// multiprocessors, and rows pass through partial results. A fit to 22 problems on two H100s and two H200s
// (doc/many_gpus.md).
inline constexpr double share_of_launches = 0.06;

// ---- Links that nobody measured (links.hpp)

// Time until all GPUs of a host have agreed. Between processes of several hosts it is the time of NCCL's all-gather on
// one host, four H200s; a ring over the hosts adds the time of a hop for each host, which is an assumption.
inline constexpr double host_agreement_seconds = 20e-6, network_agreement_seconds = 130e-6, network_hop_seconds = 5e-6;
// Time of an exchange beside its bytes: copies between GPUs, and NCCL's send and receive (0.1 to 0.27 ms, four H200s).
inline constexpr double host_exchange_seconds = 30e-6, network_exchange_seconds = 200e-6;
// Bytes/s of a GPU to other hosts in each direction: 400 Gb/s, by data sheet.
inline constexpr double network_rate = 50e9;

} // namespace annulus::cli::tuning
