// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_memory.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>

namespace annulus {

namespace {

RowPair book_pair(Workspace &workspace, std::int64_t bytes, int tensors) {
    return {workspace.take<std::byte>(tensors * bytes), bytes, tensors};
}

// Books the same memory for rounds first, first + step, …, each by book(round, workspace).
template <class Book>
void book_in_turns(Workspace &workspace, std::size_t first, std::size_t step, std::size_t rounds, Book book) {
    const Workspace begin = workspace;
    std::size_t most = 0;
    for (std::size_t i = first; i < rounds; i += step) {
        Workspace own = begin;
        book(i, own);
        most = std::max(most, own.used() - begin.used());
    }
    workspace.skip(most);
}

} // namespace

void RankMemory::book(Workspace &workspace, const RankPlan &plan, annulus_pass pass) {
    const Plan &local = plan.local();
    const Problem &problem = local.problem();
    const bool backward = pass == ANNULUS_PASS_BACKWARD;
    const annulus_dtype of_sums = sum_dtype(problem.dtype);
    const std::vector<Round> &of_plan = plan.schedule().rounds();
    rounds.resize(of_plan.size());
    for (RoundMemory &round : rounds) {
        round.received.clear();
        for (std::vector<WireBuffer> *buffers : {&round.leaving, &round.arriving, &round.returning, &round.returned})
            buffers->clear();
        round.tables.clear();
        round.tables_of_gradients.clear();
    }

    const std::int64_t query_rows = problem.heads * problem.queries.length;
    const int tensors = tensors_of_messages(problem);
    const auto book_query_rows = [&] { return workspace.take<std::byte>(bytes_of_rows(problem, query_rows, of_sums)); };
    if (backward) {
        own = {};
        if (!problem.gradients.only_v)
            own.d_q = book_query_rows();
        const RowPair of_keys =
            book_pair(workspace, bytes_of_rows(problem, problem.kv_heads * problem.keys.length, of_sums), tensors);
        own.d_k = tensors == 2 ? of_keys.first() : nullptr;
        own.d_v = of_keys.second();
    } else {
        own = {.o = book_query_rows(),
               .softmax_state = workspace.take<std::byte>(2 * problem.batch * query_rows * dtype_bytes(of_sums))};
    }

    // Two sets: rows arrive in one while the other is computed with. Gradients apart from them: those of a round may
    // still be on their way when the rows of the round after the next arrive.
    const auto book_slots = [&](const Message &message, annulus_dtype dtype, Workspace &mine) {
        return book_pair(mine, bytes_of_rows(problem, problem.kv_heads * message.slots(), dtype), tensors);
    };
    for (const std::size_t parity : {0, 1})
        book_in_turns(workspace, parity, 2, rounds.size(), [&](std::size_t i, Workspace &mine) {
            for (const Message *message : of_plan[i].receives)
                rounds[i].received.push_back({message, book_slots(*message, problem.dtype, mine), {}});
        });
    for (const std::size_t parity : {0, 1})
        book_in_turns(workspace, parity, 2, backward ? rounds.size() : 0, [&](std::size_t i, Workspace &mine) {
            for (ReceiveSlots &slots : rounds[i].received)
                slots.gradients = book_slots(*slots.message, of_sums, mine);
        });
    using Buffers = std::vector<WireBuffer> RoundMemory::*;
    const auto book_buffers = [&](std::vector<const Message *> Round::*messages, bool full_ones, annulus_dtype dtype,
                                  Buffers buffers, Buffers with_tables) {
        book_in_turns(workspace, 0, 1, rounds.size(), [&](std::size_t i, Workspace &mine) {
            RoundMemory &round = rounds[i];
            const auto new_table = [&](const Message &message) {
                const RowTable table = book_table(mine, message);
                (buffers == with_tables ? round.tables : round.tables_of_gradients).push_back({&message, table});
                return table;
            };
            for (const Message *message : of_plan[i].*messages) {
                if (!full_ones && message->is_full())
                    continue;
                std::vector<WireBuffer> &all = round.*buffers;
                const RowTable table = buffers != with_tables && keeps_tables() ? (round.*with_tables)[all.size()].table
                                                                                : new_table(*message);
                const std::int64_t bytes = bytes_of_rows(problem, message->total_rows(), dtype);
                all.push_back({message, table, book_pair(mine, bytes, tensors)});
            }
        });
    };
    book_buffers(&Round::sends, true, problem.dtype, &RoundMemory::leaving, &RoundMemory::leaving);
    book_buffers(&Round::receives, false, problem.dtype, &RoundMemory::arriving, &RoundMemory::arriving);
    if (backward) {
        book_buffers(&Round::receives, false, of_sums, &RoundMemory::returning, &RoundMemory::arriving);
        book_buffers(&Round::sends, true, of_sums, &RoundMemory::returned, &RoundMemory::leaving);
    }
}

PartialResults RankMemory::partial_results(const ReceiveSlots &slots) const {
    PartialResults partial = own;
    partial.d_k = slots.gradients.tensors == 2 ? slots.gradients.first() : nullptr;
    partial.d_v = slots.gradients.second();
    return partial;
}

} // namespace annulus
