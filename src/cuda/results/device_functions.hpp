// SPDX-License-Identifier: Apache-2.0
// What a GPU computes beside the passes of its engines (engine/backend.hpp). Streams are cudaStream_t.
#pragma once

#include "engine/mass.hpp"
#include "engine/merge.hpp"
#include "ranks/message_copier.hpp"

#include <memory>

namespace annulus {

void merge_on_cuda(const MergeWork &work, void *stream); // no float64
void mark_heads_on_cuda(const MassWork &work, void *stream);
void take_mass_on_cuda(const MassWork &work, void *stream);
std::unique_ptr<MessageCopier> make_cuda_message_copier();

} // namespace annulus
