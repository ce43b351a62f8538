// SPDX-License-Identifier: Apache-2.0
// The memory that the executables of a shard use beside their own workspace: partial results, rows of other shards in
// slots, and rows on the wire.
#pragma once

#include "core/workspace.hpp"
#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"
#include "ranks/shard_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// The rows of K and V, or of dK and dV, one tensor after the other. If only dV is wanted, it is K or dV alone, which
// first() and second() both return.
struct RowPair {
    std::byte *memory = nullptr;
    std::int64_t bytes = 0; // of one tensor
    int tensors = 2;
    std::size_t total_bytes() const { return static_cast<std::size_t>(tensors * bytes); }
    std::byte *first() const { return memory; }
    // Returns null while bytes are counted, when there is no memory.
    std::byte *second() const { return memory ? memory + (tensors - 1) * bytes : nullptr; }
};

// A message on the wire.
struct WireBuffer {
    const Message *message = nullptr;
    RowTable table{};
    RowPair wire;
};

// Received keys in slots.
struct ReceiveSlots {
    const ReceivedKeys *keys = nullptr;
    RowPair rows;      // K and V
    RowPair gradients; // backward: dK and dV
};

// A received message. If its keys are full, it is received in their slots, without a WireBuffer.
struct ReceivedMessage {
    const Message *message = nullptr;
    std::size_t slots = 0;             // the index of its keys in `slots`
    std::optional<std::size_t> buffer; // the index of its WireBuffer in `arriving` and in `returning`
};

// The memory of one round. Different rounds share memory as far as they do not need it at the same time.
struct RoundMemory {
    std::size_t number = 0;                            // among the rounds of the sequence
    std::vector<WireBuffer> leaving, arriving;         // K and V that are sent, and that are received
    std::vector<ReceiveSlots> slots;                   // all received keys
    std::vector<ReceivedMessage> received;             // every received message
    std::vector<WireBuffer> returning, returned;       // dK and dV that are sent, and that are received
    std::vector<MessageTable> tables, gradient_tables; // filled before rows, and before gradients, travel
};

// Which sums an engine keeps of a shard.
struct Sums {
    bool are_in_place; // Engine::sums_in_place
    ShardSums rows;

    Sums(const ShardPlan &plan, annulus_pass pass, const Engine &engine, Device &device, const Limits &limits);
};

struct ShardMemory {
    PartialResults own;              // of the shard's queries; in backward also dK and dV of its own keys, or dV alone
    std::vector<RoundMemory> rounds; // in which the shard has messages

    // Books all memory anew. A second call allocates nothing on the host.
    void book(Workspace &workspace, const ShardPlan &plan, annulus_pass pass, const Sums &sums);
    // Returns the partial results of the executable that attends to these keys.
    PartialResults partial_results(const ReceiveSlots &slots) const;
};

} // namespace annulus
