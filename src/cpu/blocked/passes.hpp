// SPDX-License-Identifier: Apache-2.0
// The two passes of the CPU engine, by type of accumulation.
#pragma once

#include "core/plan.hpp"
#include "core/workspace.hpp"
#include "engine/engine.hpp"

namespace annulus {

// Each pass books its workspace with book_…, once to know the size and once to carve it.
template <class T> void forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, int threads);
template <class T> void backward(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace, int threads);
template <class T>
void forward_step(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, bool first,
                  Workspace &workspace, int threads);
template <class T>
void finish_forward(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, int threads);
template <class T>
void backward_step(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums, bool first,
                   Workspace &workspace, int threads);
template <class T>
void finish_backward(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums, int threads);
template <class T> std::size_t forward_bytes(const Plan &plan, int threads);
template <class T> std::size_t backward_bytes(const Plan &plan, int threads);
template <class T> std::size_t backward_step_bytes(const Plan &plan, int threads);

} // namespace annulus
