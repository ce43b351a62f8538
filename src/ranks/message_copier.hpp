// SPDX-License-Identifier: Apache-2.0
// Moving the rows of a message between tensors and the wire, on the device of a context.
#pragma once

#include "core/workspace.hpp"
#include "engine/device.hpp"
#include "ranks/schedule.hpp"

#include <annulus/tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace annulus {

// Where the rows of a message stand on the wire and in the sequence, in the device's memory: row prefix[g] + j of a
// batch entry is the j-th wanted row of kv head g.
struct RowTable {
    std::int64_t *prefix;    // [G + 1]
    std::int64_t *firsts;    // [G], of a regular message
    std::int64_t *positions; // [total rows], of another
    std::int64_t *counts;    // [G, pieces of the keys], of another: how many rows are wanted in each
    std::byte *segments;     // room for the message's, of another
};

// A table that is to be filled.
struct TableOfMessage {
    const Message *message;
    RowTable table;
};

// Rows of a [batch, …, D] tensor: position m of kv head g and batch entry b begins at element
// b * batch + g * head + (m - start) / stride * row.
struct RowView {
    void *data = nullptr;
    std::int64_t batch = 0, head = 0, row = 0;
    std::int64_t start = 0, stride = 1;
};

// The rows of a message in up to two tensors and on the wire, [batch, total rows, D] of each.
struct RowMove {
    struct Ends {
        RowView rows;
        void *wire;
    };
    const Message *message;
    RowTable table;
    annulus_dtype dtype;
    std::int64_t batches;
    std::int32_t head_dim;
    int tensors;
    std::array<Ends, 2> tensor_ends;
};

class MessageCopier {
  public:
    virtual ~MessageCopier() = default;

    // Fills tables; `plan` is the one that their messages were made from.
    virtual void fill(const std::vector<TableOfMessage> &tables, const Plan &plan, void *stream) = 0;
    // wire = rows; rows = wire; rows += wire.
    virtual void pack(const RowMove &move, void *stream) = 0;
    virtual void unpack(const RowMove &move, void *stream) = 0;
    virtual void add(const RowMove &move, void *stream) = 0;
};

RowTable book_table(Workspace &workspace, const Message &message);

} // namespace annulus
