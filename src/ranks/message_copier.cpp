// SPDX-License-Identifier: Apache-2.0
#include "ranks/message_copier.hpp"

namespace annulus {

RowTable book_table(Workspace &workspace, const Message &message) {
    const auto heads = static_cast<std::int64_t>(message.rows.size());
    RowTable table{};
    table.prefix = workspace.take<std::int64_t>(heads + 1);
    if (message.is_regular()) {
        table.firsts = workspace.take<std::int64_t>(heads);
    } else {
        table.positions = workspace.take<std::int64_t>(message.total_rows());
        table.counts = workspace.take<std::int64_t>(heads * message.piece_count());
        table.segments =
            workspace.take<std::byte>(static_cast<std::int64_t>(message.segments.size() * sizeof(CommonSegment)));
    }
    return table;
}

} // namespace annulus
