// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_memory.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>

namespace annulus {

namespace {

RowPair book_pair(Workspace &workspace, std::int64_t bytes, int tensors) {
    return {workspace.take<std::byte>(tensors * bytes), bytes, tensors};
}

// Books one piece of memory that the rounds with the numbers first, first + step, … share. book(i, workspace) books
// what rounds[i] needs.
template <class Book>
void book_for_rounds(Workspace &workspace, std::size_t first, std::size_t step, const std::vector<RoundMemory> &rounds,
                     Book book) {
    const Workspace begin = workspace;
    std::size_t max_bytes = 0;
    for (std::size_t i = 0; i < rounds.size(); ++i) {
        if (rounds[i].number % step != first)
            continue;
        Workspace own = begin;
        book(i, own);
        max_bytes = std::max(max_bytes, own.used() - begin.used());
    }
    workspace.skip(max_bytes);
}

} // namespace

void ShardMemory::book(Workspace &workspace, const ShardPlan &plan, annulus_pass pass) {
    const Plan &local = plan.local();
    const Problem &problem = local.problem();
    const bool is_backward = pass == ANNULUS_PASS_BACKWARD;
    const annulus_dtype sums_dtype = sum_dtype(problem.dtype);
    const std::vector<Round> &plan_rounds = plan.schedule().rounds();
    rounds.resize(plan_rounds.size());
    for (std::size_t i = 0; i < rounds.size(); ++i) {
        RoundMemory &round = rounds[i];
        round.number = plan_rounds[i].number;
        round.slots.clear();
        round.received.clear();
        for (std::vector<WireBuffer> *buffers : {&round.leaving, &round.arriving, &round.returning, &round.returned})
            buffers->clear();
        round.tables.clear();
        round.gradient_tables.clear();
    }

    const std::int64_t query_rows = problem.heads * problem.queries.length;
    const int tensors = message_tensor_count(problem);
    const auto book_query_rows = [&] {
        return workspace.take<std::byte>(row_tensor_bytes(problem, query_rows, sums_dtype));
    };
    own = {.softmax_state = workspace.take<std::byte>(2 * problem.batch * query_rows * dtype_bytes(sums_dtype))};
    if (is_backward) {
        if (!problem.gradients.only_v)
            own.d_q = book_query_rows();
        const RowPair key_gradients = book_pair(
            workspace, row_tensor_bytes(problem, problem.kv_heads * problem.keys.length, sums_dtype), tensors);
        own.d_k = tensors == 2 ? key_gradients.first() : nullptr;
        own.d_v = key_gradients.second();
    } else {
        own.o = book_query_rows();
    }

    // There are two sets of slots: rows arrive in one set while the executables compute with the other. Gradients have
    // two sets of their own: a round's gradients may still travel when the rows of the round after the next arrive.
    const auto book_slots = [&](const ReceivedKeys &keys, annulus_dtype dtype, Workspace &mine) {
        return book_pair(mine, row_tensor_bytes(problem, problem.kv_heads * keys.slots(), dtype), tensors);
    };
    for (const std::size_t parity : {0, 1})
        book_for_rounds(workspace, parity, 2, rounds, [&](std::size_t i, Workspace &mine) {
            RoundMemory &round = rounds[i];
            std::size_t buffers = 0;
            for (const ReceivedKeys &keys : plan.received()[i]) {
                for (const Message *const message : keys.messages) {
                    ReceivedMessage &received = round.received.emplace_back();
                    received.message = message;
                    received.slots = round.slots.size();
                    if (!keys.are_full())
                        received.buffer = buffers++;
                }
                round.slots.push_back({&keys, book_slots(keys, problem.dtype, mine), {}});
            }
        });
    if (is_backward)
        for (const std::size_t parity : {0, 1})
            book_for_rounds(workspace, parity, 2, rounds, [&](std::size_t i, Workspace &mine) {
                for (ReceiveSlots &slots : rounds[i].slots)
                    slots.gradients = book_slots(*slots.keys, sums_dtype, mine);
            });
    // The gradients of a message use the table of its rows if there is one round: then no other round's tables
    // overwrite it before the gradients return.
    const bool shares_tables = plan.schedule().round_count() == 1;
    using Buffers = std::vector<WireBuffer> RoundMemory::*;
    const auto book_buffers = [&](bool are_received, annulus_dtype dtype, Buffers buffers, Buffers table_owner) {
        book_for_rounds(workspace, 0, 1, rounds, [&](std::size_t i, Workspace &mine) {
            RoundMemory &round = rounds[i];
            const auto book_new_table = [&](const Message &message) {
                const RowTable table = book_table(mine, message);
                (buffers == table_owner ? round.tables : round.gradient_tables).push_back({&message, table});
                return table;
            };
            const auto book_buffer = [&](const Message &message) {
                std::vector<WireBuffer> &all = round.*buffers;
                const RowTable table = buffers != table_owner && shares_tables ? (round.*table_owner)[all.size()].table
                                                                               : book_new_table(message);
                const std::int64_t bytes = row_tensor_bytes(problem, message.total_rows(), dtype);
                all.push_back({&message, table, book_pair(mine, bytes, tensors)});
            };
            if (!are_received)
                for (const Message *const message : plan_rounds[i].sends)
                    book_buffer(*message);
            else
                for (const ReceivedMessage &received : round.received)
                    if (received.buffer)
                        book_buffer(*received.message);
        });
    };
    book_buffers(false, problem.dtype, &RoundMemory::leaving, &RoundMemory::leaving);
    book_buffers(true, problem.dtype, &RoundMemory::arriving, &RoundMemory::arriving);
    if (is_backward) {
        book_buffers(true, sums_dtype, &RoundMemory::returning, &RoundMemory::arriving);
        book_buffers(false, sums_dtype, &RoundMemory::returned, &RoundMemory::leaving);
    }
}

PartialResults ShardMemory::partial_results(const ReceiveSlots &slots) const {
    PartialResults partial = own;
    partial.d_k = slots.gradients.tensors == 2 ? slots.gradients.first() : nullptr;
    partial.d_v = slots.gradients.second();
    return partial;
}

} // namespace annulus
