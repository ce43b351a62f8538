// SPDX-License-Identifier: Apache-2.0
// The two passes of the CPU engine, by type of accumulation. Each books its workspace: once to find the size and once
// to take the pieces. With a key scope other than all_keys they add to the partial results, and finish_… writes these
// to the outputs.
#pragma once

#include "core/plan.hpp"
#include "engine/engine.hpp"

#include <cstddef>

namespace annulus {

template <class T> std::size_t forward_bytes(const Plan &plan, int threads);
template <class T>
void forward(const Plan &plan, KeyScope scope, const CallTensors &tensors, const PartialResults &partial,
             void *workspace, int threads);
template <class T>
void finish_forward(const Plan &plan, const CallTensors &tensors, const PartialResults &partial, int threads);

template <class T> std::size_t backward_bytes(const Plan &plan, KeyScope scope, int threads);
template <class T>
void backward(const Plan &plan, KeyScope scope, const CallTensors &tensors, const PartialResults &partial,
              void *workspace, int threads);
template <class T>
void finish_backward(const Plan &plan, const CallTensors &tensors, const PartialResults &partial, int threads);

} // namespace annulus
