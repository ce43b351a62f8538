// SPDX-License-Identifier: Apache-2.0
// What an engine owes: say whether it can, say how much memory it takes, do it.
#pragma once

#include "core/pattern.hpp"
#include "core/plan.hpp"
#include "core/workspace.hpp"
#include "engine/device.hpp"

#include <annulus/config.h>
#include <annulus/context.h>
#include <annulus/tensor.h>

#include <cstddef>
#include <cstdint>

namespace annulus {

// Checked tensors of one call. `lse` is null in forward when it is not wanted; `d_lse` may be null.
struct ForwardTensors {
    annulus_tensor q, k, v, out;
    const annulus_tensor *lse;
};

struct BackwardTensors {
    annulus_tensor q, k, v, out, lse, d_out;
    const annulus_tensor *d_lse;
    annulus_tensor d_q, d_k, d_v;
};

// What a call may use, from the context and its config.
struct Resources {
    int threads;
    std::uint64_t workspace_limit; // bytes; 0: the engine's own choice
    bool allow_tf32;
    void *stream; // null on a CPU; on CUDA a cudaStream_t
    Device *device;
};

struct Engine {
    annulus_engine id;
    annulus_device device;
    // Why the engine cannot serve the plan, or null when it can.
    const char *(*refusal)(const Plan &plan, annulus_pass pass, const Resources &resources);
    // Bytes of workspace that forward or backward books. Above a limit that is set, the call fails.
    std::size_t (*workspace_bytes)(const Plan &plan, annulus_pass pass, const Resources &resources);
    // The problem's windows are those of the tensors. Neither allocates; `workspace` is as large as was asked for.
    void (*forward)(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources);
    void (*backward)(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace,
                     const Resources &resources);
};

// The engines' entries, defined in their own rooms.
extern const Engine reference_engine;
extern const Engine cpu_engine;
extern const Engine gemm_engine; // only with CUDA

// The engine for a plan: the one asked for, or for `auto` the first of the device that supports it. Throws
// Error(ANNULUS_ERROR_UNSUPPORTED) with the reason.
const Engine &choose_engine(annulus_device device, annulus_engine wanted, const Plan &plan, annulus_pass pass,
                            const Resources &resources);

// Throws unless `engine` can run on `device` at all.
void check_engine_device(annulus_device device, annulus_engine engine);

const char *engine_name(annulus_engine engine);

} // namespace annulus
