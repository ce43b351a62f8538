// SPDX-License-Identifier: Apache-2.0
// Packs the rows of messages between ranks on a CPU, unpacks them and adds them.
#include "cpu/message_copier.hpp"

#include "core/dtype_number.hpp"

#include <cstring>
#include <numeric>

namespace annulus {

namespace {

// Calls use(row in the tensor, row in the message) for all rows of a message in one tensor.
template <class Use> void for_each_pair(const RowMove &move, const RowMove::Ends &ends, Use use) {
    const Message &message = *move.message;
    const std::int64_t element = dtype_bytes(move.dtype), total = message.total_rows();
    auto *const data = static_cast<std::byte *>(ends.rows.data);
    auto *const wire = static_cast<std::byte *>(ends.wire);
    const RowView &rows = ends.rows;
    for (std::int64_t b = 0; b < move.batches; ++b)
        for (std::size_t g = 0; g < message.rows.size(); ++g)
            for (std::int64_t j = 0; j < message.rows[g]; ++j) {
                const std::int64_t i = move.table.prefix[g] + j;
                const std::int64_t position =
                    message.is_regular() ? message.firsts[g] + j * message.stride : move.table.positions[i];
                const std::int64_t row = rows.summed ? rows.summed->row(static_cast<std::int32_t>(g), position)
                                                     : (position - rows.start) / rows.stride;
                const std::int64_t offset = b * rows.batch + static_cast<std::int64_t>(g) * rows.head + row * rows.row;
                use(data + offset * element, wire + (b * total + i) * move.head_dim * element);
            }
}

// Calls use() for the rows of all tensors.
template <class Use> void for_each_pair(const RowMove &move, Use use) {
    for (int i = 0; i < move.tensors; ++i)
        for_each_pair(move, move.tensor_ends[i], use);
}

template <class T> void add_row(std::byte *target, const std::byte *values, std::int32_t length) {
    auto *const sum = reinterpret_cast<T *>(target);
    const auto *const row = reinterpret_cast<const T *>(values);
    for (std::int32_t d = 0; d < length; ++d)
        sum[d] += row[d];
}

class CpuRowMover : public MessageCopier {
  public:
    void fill(const std::vector<MessageTable> &tables, const Plan &plan, void *) override {
        for (const auto &[message, table] : tables) {
            table.prefix[0] = 0;
            std::partial_sum(message->rows.begin(), message->rows.end(), table.prefix + 1);
            if (message->is_regular())
                continue;
            std::int64_t *next = table.positions;
            for (std::int32_t g = 0; g < plan.problem().kv_heads; ++g)
                for_each_row(plan, *message, g, [&](std::int64_t position) { *next++ = position; });
        }
    }

    void pack(const RowMove &move, void *) override {
        for_each_pair(move,
                      [bytes = row_bytes(move)](std::byte *row, std::byte *wire) { std::memcpy(wire, row, bytes); });
    }

    void unpack(const RowMove &move, void *) override {
        for_each_pair(move,
                      [bytes = row_bytes(move)](std::byte *row, std::byte *wire) { std::memcpy(row, wire, bytes); });
    }

    void add(const RowMove &move, void *) override {
        for_each_pair(move, [&](std::byte *row, std::byte *wire) {
            if (move.dtype == ANNULUS_FLOAT64)
                add_row<double>(row, wire, move.head_dim);
            else
                add_row<float>(row, wire, move.head_dim);
        });
    }

  private:
    static std::size_t row_bytes(const RowMove &move) {
        return static_cast<std::size_t>(std::int64_t{move.head_dim} * dtype_bytes(move.dtype));
    }
};

} // namespace

std::unique_ptr<MessageCopier> make_cpu_message_copier() {
    return std::make_unique<CpuRowMover>();
}

} // namespace annulus
