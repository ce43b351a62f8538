// SPDX-License-Identifier: Apache-2.0
// What the library needs of a kind of device: its engines and the functions that belong to no engine.
#pragma once

#include "engine/device.hpp"
#include "engine/engine.hpp"
#include "engine/mass.hpp"
#include "engine/merge.hpp"

#include <memory>
#include <span>

namespace annulus {

class MessageCopier; // ranks/message_copier.hpp

// `threads` are CPU threads and `stream` is a cudaStream_t; each backend ignores the one that it has no use for.
struct Backend {
    annulus_device device;
    std::span<const Engine *const> engines; // `auto` tries them in this order
    int (*device_count)();
    // `index` is below device_count(). Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the reason if there is no device.
    std::unique_ptr<Device> (*make_device)(int index);
    // Merges results over different keys.
    void (*merge)(const MergeWork &work, int threads, void *stream);
    // Writes dO of a round of an attention mass, and copies the masses out of dV.
    void (*mark_heads)(const MassWork &work, int threads, void *stream);
    void (*take_mass)(const MassWork &work, int threads, void *stream);
    std::unique_ptr<MessageCopier> (*make_message_copier)();
};

inline constexpr std::size_t most_engines_of_device = 3;

} // namespace annulus
