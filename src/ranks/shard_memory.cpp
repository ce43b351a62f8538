// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_memory.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>

namespace annulus {

namespace {

// Books a shard's memory, one kind of memory at a time.
class Booking {
  public:
    Booking(Workspace &workspace, const ShardPlan &plan, std::vector<RoundMemory> &rounds)
        : workspace_(workspace), plan_(plan), problem_(plan.local().problem()), sums_dtype_(sum_dtype(problem_.dtype)),
          tensors_(message_tensor_count(problem_)), rounds_(rounds) {}

    void clear_rounds() {
        const std::vector<Round> &planned = plan_.schedule().rounds();
        rounds_.resize(planned.size());
        for (std::size_t i = 0; i < rounds_.size(); ++i) {
            RoundMemory &round = rounds_[i];
            round.number = planned[i].number;
            round.slots.clear();
            round.received.clear();
            for (std::vector<WireBuffer> *buffers :
                 {&round.leaving, &round.arriving, &round.returning, &round.returned})
                buffers->clear();
            round.tables.clear();
            round.gradient_tables.clear();
        }
    }

    PartialResults outputs(const Sums &sums) {
        PartialResults own = without_memory(sums);
        const std::int64_t rows = query_rows(sums);
        own.softmax_state = book_state(rows);
        own.o = book_sums(rows);
        return own;
    }

    PartialResults gradients(const Sums &sums) {
        const std::int64_t key_rows = problem_.kv_heads * rows_of(sums.rows.keys, problem_.keys);
        const auto book = [&](const GradientTarget &target, std::int64_t rows) {
            const bool is_in_place = sums.are_in_place && holds_sums(problem_, target);
            return is_in_place ? nullptr : book_sums(rows);
        };
        PartialResults own = without_memory(sums);
        if (!sums.are_in_place)
            own.softmax_state = book_state(problem_.heads * problem_.queries.length);
        if (!problem_.gradients.only_v) {
            own.d_q = book(problem_.gradients.q, query_rows(sums));
            own.d_k = book(problem_.gradients.k, key_rows);
        }
        own.d_v = book(problem_.gradients.v, key_rows);
        return own;
    }

    // Books two sets of slots: rows arrive in one set while the executables compute with the other.
    void slots() {
        for (const std::size_t parity : {0, 1})
            for_rounds(parity, 2, [&](std::size_t i, Workspace &mine) {
                RoundMemory &round = rounds_[i];
                std::size_t buffers = 0;
                for (const ReceivedKeys &keys : plan_.received()[i]) {
                    for (const Message *const message : keys.messages) {
                        ReceivedMessage &received = round.received.emplace_back();
                        received.message = message;
                        received.slots = round.slots.size();
                        if (!keys.are_full())
                            received.buffer = buffers++;
                    }
                    round.slots.push_back({&keys, book_slots(keys, problem_.dtype, mine), {}});
                }
            });
    }

    // Books two further sets: a round's gradients may still travel when the rows of the round after the next arrive.
    void gradient_slots() {
        for (const std::size_t parity : {0, 1})
            for_rounds(parity, 2, [&](std::size_t i, Workspace &mine) {
                for (ReceiveSlots &slots : rounds_[i].slots)
                    slots.gradients = book_slots(*slots.keys, sums_dtype_, mine);
            });
    }

    // Books the buffers of K and V.
    void buffers() {
        for_rounds(0, 1, [&](std::size_t i, Workspace &mine) {
            for (const Message *const message : plan_.schedule().rounds()[i].sends)
                rounds_[i].leaving.push_back(book_buffer(*message, rounds_[i].tables, mine));
        });
        for_rounds(0, 1, [&](std::size_t i, Workspace &mine) {
            for (const ReceivedMessage &received : rounds_[i].received)
                if (received.buffer)
                    rounds_[i].arriving.push_back(book_buffer(*received.message, rounds_[i].tables, mine));
        });
    }

    // Books the buffers of dK and dV: a buffer for each buffer of K and V, whose rows go the other way.
    void gradient_buffers() {
        for_rounds(0, 1, [&](std::size_t i, Workspace &mine) {
            for (const WireBuffer &rows : rounds_[i].arriving)
                rounds_[i].returning.push_back(book_gradient_buffer(rows, rounds_[i].gradient_tables, mine));
        });
        for_rounds(0, 1, [&](std::size_t i, Workspace &mine) {
            for (const WireBuffer &rows : rounds_[i].leaving)
                rounds_[i].returned.push_back(book_gradient_buffer(rows, rounds_[i].gradient_tables, mine));
        });
    }

  private:
    // Books one piece of memory that the rounds with the numbers first, first + step, … share. book(i, workspace) books
    // what rounds_[i] needs.
    template <class Book> void for_rounds(std::size_t first, std::size_t step, Book book) {
        const Workspace begin = workspace_;
        std::size_t max_bytes = 0;
        for (std::size_t i = 0; i < rounds_.size(); ++i) {
            if (rounds_[i].number % step != first)
                continue;
            Workspace own = begin;
            book(i, own);
            max_bytes = std::max(max_bytes, own.used() - begin.used());
        }
        workspace_.skip(max_bytes);
    }

    static PartialResults without_memory(const Sums &sums) {
        PartialResults own;
        own.summed_queries = sums.rows.queries ? &*sums.rows.queries : nullptr;
        own.summed_keys = sums.rows.keys ? &*sums.rows.keys : nullptr;
        return own;
    }
    static std::int64_t rows_of(const std::optional<SummedRows> &summed, const Window &all) {
        return summed ? summed->count() : all.length;
    }
    std::int64_t query_rows(const Sums &sums) const {
        return problem_.heads * rows_of(sums.rows.queries, problem_.queries);
    }

    void *book_state(std::int64_t rows) {
        return workspace_.take<std::byte>(2 * problem_.batch * rows * dtype_bytes(sums_dtype_));
    }
    void *book_sums(std::int64_t rows) {
        return workspace_.take<std::byte>(row_tensor_bytes(problem_, rows, sums_dtype_));
    }

    RowPair book_rows(Workspace &mine, std::int64_t rows, annulus_dtype dtype) const {
        const std::int64_t bytes = row_tensor_bytes(problem_, rows, dtype);
        return {mine.take<std::byte>(tensors_ * bytes), bytes, tensors_};
    }

    RowPair book_slots(const ReceivedKeys &keys, annulus_dtype dtype, Workspace &mine) const {
        return book_rows(mine, problem_.kv_heads * keys.slots(), dtype);
    }

    WireBuffer book_buffer(const Message &message, std::vector<MessageTable> &tables, Workspace &mine) const {
        tables.push_back({&message, book_table(mine, message)});
        return {&message, tables.back().table, book_rows(mine, message.total_rows(), problem_.dtype)};
    }

    // The gradients of a message use the table of its rows if there is one round: then no other round's tables
    // overwrite it before the gradients return.
    WireBuffer book_gradient_buffer(const WireBuffer &rows, std::vector<MessageTable> &tables, Workspace &mine) const {
        WireBuffer buffer{rows.message, rows.table, {}};
        if (plan_.schedule().round_count() != 1) {
            tables.push_back({rows.message, book_table(mine, *rows.message)});
            buffer.table = tables.back().table;
        }
        buffer.wire = book_rows(mine, rows.message->total_rows(), sums_dtype_);
        return buffer;
    }

    Workspace &workspace_;
    const ShardPlan &plan_;
    const Problem &problem_;
    annulus_dtype sums_dtype_;
    int tensors_; // of a message
    std::vector<RoundMemory> &rounds_;
};

} // namespace

Sums::Sums(const ShardPlan &plan, annulus_pass pass, const Engine &engine, Device &device, const Limits &limits)
    : are_in_place(engine.sums_in_place) {
    if (engine.summed_rows && plan.local().problem().queries.length > 0 && plan.has_partial_results(pass))
        rows = engine.summed_rows(plan.local(), pass, device, limits);
}

void ShardMemory::book(Workspace &workspace, const ShardPlan &plan, annulus_pass pass, const Sums &sums) {
    const bool is_backward = pass == ANNULUS_PASS_BACKWARD;
    Booking booking(workspace, plan, rounds);
    booking.clear_rounds();
    own = PartialResults{};
    if (plan.has_partial_results(pass))
        own = is_backward ? booking.gradients(sums) : booking.outputs(sums);
    booking.slots();
    if (is_backward)
        booking.gradient_slots();
    booking.buffers();
    if (is_backward)
        booking.gradient_buffers();
}

PartialResults ShardMemory::partial_results(const ReceiveSlots &slots) const {
    PartialResults partial = own;
    partial.d_k = slots.gradients.tensors == 2 ? slots.gradients.first() : nullptr;
    partial.d_v = slots.gradients.second();
    partial.summed_keys = nullptr;
    return partial;
}

} // namespace annulus
