// SPDX-License-Identifier: Apache-2.0
// The memory of a rank's call: partial results, rows of other ranks where they are computed with, rows on the wire.
#pragma once

#include "core/workspace.hpp"
#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"
#include "ranks/rank_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus {

// Rows of two tensors, one behind the other; or, where only dV is wanted, of one, K or dV, which is then both.
struct RowPair {
    std::byte *memory = nullptr;
    std::int64_t bytes = 0; // of one tensor
    int tensors = 2;
    std::size_t total_bytes() const { return static_cast<std::size_t>(tensors * bytes); }
    std::byte *first() const { return memory; }
    std::byte *second() const { return memory ? memory + (tensors - 1) * bytes : nullptr; } // null while it is booked
};

// A message on the wire.
struct WireBuffer {
    const Message *message = nullptr;
    RowTable table{};
    RowPair wire;
};

// A message where it is computed with, by slots; a full one arrives there straight from the wire.
struct ReceiveSlots {
    const Message *message = nullptr;
    RowPair rows;      // K and V
    RowPair gradients; // dK and dV, backward
};

// Rounds that follow one another share theirs.
struct RoundMemory {
    std::vector<WireBuffer> leaving, arriving;   // K and V of sends, and of receives that are not full
    std::vector<ReceiveSlots> received;          // of receives
    std::vector<WireBuffer> returning, returned; // dK and dV of receives that are not full, and of sends
    std::vector<TableOfMessage> tables, tables_of_gradients;
};

struct RankMemory {
    PartialResults own; // of the rank's queries; backward also dK and dV of its own keys, or dV alone
    std::vector<RoundMemory> rounds;

    // Gradients return with the tables of the rows that they are of, and have none of their own: no other round's lie
    // there meanwhile.
    bool keeps_tables() const { return rounds.size() == 1; }
    // Books all of it anew. Allocates nothing on the host the second time.
    void book(Workspace &workspace, const RankPlan &plan, annulus_pass pass);
    // The partial results of the part with these keys.
    PartialResults partial_results(const ReceiveSlots &slots) const;
};

} // namespace annulus
