// SPDX-License-Identifier: Apache-2.0
// Moves the rows of a message between tensors and the wire, on the device of a context.
#pragma once

#include "core/summed_rows.hpp"
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

// The rows of a message on the wire, with their positions in the sequence. On the wire, row prefix[g] + j of a batch
// entry is the j-th wanted row of kv head g. The arrays are in the device's memory.
struct RowTable {
    std::int64_t *prefix;    // [G + 1]
    std::int64_t *firsts;    // [G]; only for a regular message
    std::int64_t *positions; // [total rows]; this and the following only for an irregular message
    std::int64_t *counts;    // [G, piece count]: the number of wanted rows in each piece of the keys
    std::byte *segments;     // room for a copy of the message's segments
};

// A table that fill() is to fill, and its message.
struct MessageTable {
    const Message *message;
    RowTable table;
};

// Rows of a [batch, …, D] tensor: position m of kv head g and batch entry b begins at element
// b * batch + g * head + (m - start) / stride * row. With `summed`, the last term is the number of the summed row times
// row, and every row that is moved must have one.
struct RowView {
    void *data = nullptr;
    std::int64_t batch = 0, head = 0, row = 0;
    std::int64_t start = 0, stride = 1;
    const SummedRows *summed = nullptr;
};

// The rows of a message in up to two tensors and on the wire. On the wire each tensor has [batch, total rows, D].
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

    // Fills tables. `plan` is the plan that their messages were made from.
    virtual void fill(const std::vector<MessageTable> &tables, const Plan &plan, void *stream) = 0;
    // wire = rows; rows = wire; rows += wire.
    virtual void pack(const RowMove &move, void *stream) = 0;
    virtual void unpack(const RowMove &move, void *stream) = 0;
    virtual void add(const RowMove &move, void *stream) = 0;
};

// Books the arrays of a message's table.
RowTable book_table(Workspace &workspace, const Message &message);

} // namespace annulus
