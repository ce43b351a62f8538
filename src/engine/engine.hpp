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

// The tensors of a call that is about to be made; neither if there is none yet.
struct CallTensors {
    const ForwardTensors *forward = nullptr;
    const BackwardTensors *backward = nullptr;
};

// A pass may take several steps, each with a part of the keys. What it has of its results meanwhile is of the type of
// accumulation: float64 for float64 tensors, else float32.
struct ForwardSums {
    void *o;          // [B, H, Nq, D], not normalised
    void *statistics; // [B, H, Nq, 2], in a form of the engine's own
};

struct BackwardSums {
    void *d_q;       // [B, H, Nq, D]
    void *d_k, *d_v; // [B, G, rows, D], of the step's keys
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
    // The same of the tensors of a call whose plan it can serve. Null: it takes all tensors.
    const char *(*tensor_refusal)(const CallTensors &tensors);
    // Bytes of workspace that forward or backward books. Above a limit that is set, the call fails.
    std::size_t (*workspace_bytes)(const Plan &plan, annulus_pass pass, const Resources &resources);
    // The problem's windows are those of the tensors. Neither allocates; `workspace` is as large as was asked for.
    void (*forward)(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources);
    void (*backward)(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace,
                     const Resources &resources);

    // The same in steps; null where the engine has none. The plan's keys are those of the step, its queries always the
    // same. The first step's keys are the positions of the queries; those of the others lie outside them. All steps of
    // a call have the same workspace, in which nobody else writes meanwhile.
    std::size_t (*step_bytes)(const Plan &plan, annulus_pass pass, const Resources &resources);
    // Adds the step's keys to the sums, which the first step sets. It may write the outputs, too, of queries that
    // attend to its own keys alone. Of the tensors the other steps use the inputs only.
    void (*forward_step)(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, bool first,
                         Workspace &workspace, const Resources &resources);
    // Sets d_k and d_v, adds to d_q, which the first step sets. As above, the first step may write rows of the outputs
    // to which no other step and no other rank adds.
    void (*backward_step)(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums, bool first,
                          Workspace &workspace, const Resources &resources);
    // From the sums, those of the first step's keys, to the outputs that it has not written.
    void (*finish_forward)(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums,
                           const Resources &resources);
    void (*finish_backward)(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums,
                            const Resources &resources);
};

// The engines' entries, defined in their own rooms.
extern const Engine reference_engine;
extern const Engine cpu_engine;
extern const Engine gemm_engine;  // only with CUDA
extern const Engine fused_engine; // only with CUDA for Hopper

// The engine for a plan and, in a call, its tensors: the one asked for, or for `auto` the first of the device that
// supports them, on a GPU the first within the workspace limit where there is one. Throws
// Error(ANNULUS_ERROR_UNSUPPORTED) with the reason.
const Engine &choose_engine(annulus_device device, annulus_engine wanted, const Plan &plan, annulus_pass pass,
                            const CallTensors &tensors, const Resources &resources);

// Throws unless `engine` can run on `device` at all.
void check_engine_device(annulus_device device, annulus_engine engine);

const char *engine_name(annulus_engine engine);

} // namespace annulus
