// SPDX-License-Identifier: Apache-2.0
// The order of a call, on a GPU of two streams, the call's and the one for communication:
//
//     send and receive round 0            | local step
//     send and receive round 1            | steps of round 0
//     return gradients of round 0, round 2 | steps of round 1
//     …
//
// Batches are begun and finished in one order on all ranks, whatever each of them has to do in a round.
#include "ranks/rank_call.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <exception>

namespace annulus {

namespace {

Problem local_problem(Problem problem, const Window &shard) {
    problem.queries = problem.keys = shard;
    problem.key_stride = 1;
    return problem;
}

Problem remote_problem(Problem problem, const Message &message) {
    problem.queries = message.queries;
    problem.keys = message.keys;
    problem.key_stride = message.stride;
    return problem;
}

Pattern remote_pattern(Pattern pattern) {
    pattern.causal = false;
    pattern.padding_rule = ANNULUS_PADDING_EXACT;
    return pattern;
}

// Bytes of some rows of one tensor, of all batch entries.
std::int64_t bytes_of_rows(const Problem &problem, std::int64_t rows, annulus_dtype dtype) {
    return problem.batch * rows * problem.head_dim * dtype_bytes(dtype);
}

} // namespace

RingPlan::RingPlan(const Pattern &pattern, const Problem &problem, const std::vector<Window> &shards, int rank,
                   annulus_exchange exchange, std::int64_t most_steps)
    : local_(pattern, local_problem(problem, shards[static_cast<std::size_t>(rank)])),
      schedule_(local_, shards, rank, exchange, most_steps), remote_(shards.size()) {
    const Plan of_remote(remote_pattern(pattern), problem);
    for (const Round &round : schedule_.rounds())
        for (const Message *message : round.receives)
            remote_[static_cast<std::size_t>(message->from)].emplace(of_remote, remote_problem(problem, *message));
}

bool RingPlan::communicates() const {
    return std::any_of(schedule_.rounds().begin(), schedule_.rounds().end(),
                       [](const Round &round) { return !round.sends.empty() || !round.receives.empty(); });
}

namespace {

// Two tensors of rows each way: K and V, and backward dK and dV of the accumulation's type the other way.
std::uint64_t bytes_of_messages(const RingPlan &plan, std::vector<const Message *> Round::*messages, bool gradients) {
    const Problem &problem = plan.local().problem();
    const annulus_dtype dtype = gradients ? sum_dtype(problem.dtype) : problem.dtype;
    std::int64_t bytes = 0;
    for (const Round &round : plan.schedule().rounds())
        for (const Message *message : round.*messages)
            if (__builtin_add_overflow(bytes, 2 * bytes_of_rows(problem, message->total_rows(), dtype), &bytes))
                throw Error(ANNULUS_ERROR_ARGUMENT,
                            "the rows that rank %d would exchange with the others are more than 64 bits can count",
                            plan.schedule().rank());
    return static_cast<std::uint64_t>(bytes);
}

} // namespace

std::uint64_t RingPlan::sent_bytes(annulus_pass pass) const {
    return bytes_of_messages(*this, &Round::sends, false) +
           (pass == ANNULUS_PASS_BACKWARD ? bytes_of_messages(*this, &Round::receives, true) : 0);
}

std::uint64_t RingPlan::received_bytes(annulus_pass pass) const {
    return bytes_of_messages(*this, &Round::receives, false) +
           (pass == ANNULUS_PASS_BACKWARD ? bytes_of_messages(*this, &Round::sends, true) : 0);
}

namespace {

// ---- Memory. Rounds that follow one another share theirs.

// Rows of two tensors, one behind the other.
struct Pair {
    std::byte *memory = nullptr;
    std::int64_t bytes = 0; // of one tensor
    std::byte *first() const { return memory; }
    std::byte *second() const { return memory + bytes; }
};

// A message on the wire.
struct WireBuffer {
    const Message *message = nullptr;
    RowTable table{};
    Pair wire;
};

// A message where it is computed with, by slots; a full one lands there straight from the wire.
struct ReceiveSlots {
    const Message *message = nullptr;
    Pair rows;      // K and V
    Pair gradients; // dK and dV, backward
};

struct RoundMemory {
    std::vector<WireBuffer> leaving, arriving;   // K and V of sends, and of receives that are not full
    std::vector<ReceiveSlots> landings;          // of receives
    std::vector<WireBuffer> returning, returned; // dK and dV of receives that are not full, and of sends
};

struct RingMemory {
    void *sums = nullptr, *statistics = nullptr; // O or dQ; forward
    Pair gradients;                              // of the rank's own dK and dV
    std::vector<RoundMemory> rounds;
};

Pair book_pair(Workspace &workspace, std::int64_t bytes) {
    return {workspace.take<std::byte>(2 * bytes), bytes};
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

RingMemory book(Workspace &workspace, const RingPlan &plan, annulus_pass pass) {
    const Plan &local = plan.local();
    const Problem &problem = local.problem();
    const bool backward = pass == ANNULUS_PASS_BACKWARD;
    const annulus_dtype of_sums = sum_dtype(problem.dtype);
    const std::vector<Round> &rounds = plan.schedule().rounds();
    RingMemory memory;
    memory.rounds.resize(rounds.size());

    const std::int64_t query_rows = problem.heads * problem.queries.length;
    memory.sums = workspace.take<std::byte>(bytes_of_rows(problem, query_rows, of_sums));
    if (backward)
        memory.gradients =
            book_pair(workspace, bytes_of_rows(problem, problem.kv_heads * problem.keys.length, of_sums));
    else
        memory.statistics = workspace.take<std::byte>(2 * problem.batch * query_rows * dtype_bytes(of_sums));

    // Two sets: rows arrive in one while the other is computed with. Gradients apart from them: those of a round may
    // still be on their way when the rows of the round after the next arrive.
    const auto book_slots = [&](const Message &message, annulus_dtype dtype, Workspace &own) {
        return book_pair(own, bytes_of_rows(problem, problem.kv_heads * message.slots(), dtype));
    };
    for (const std::size_t parity : {0, 1})
        book_in_turns(workspace, parity, 2, rounds.size(), [&](std::size_t i, Workspace &own) {
            for (const Message *message : rounds[i].receives)
                memory.rounds[i].landings.push_back({message, book_slots(*message, problem.dtype, own), {}});
        });
    for (const std::size_t parity : {0, 1})
        book_in_turns(workspace, parity, 2, backward ? rounds.size() : 0, [&](std::size_t i, Workspace &own) {
            for (ReceiveSlots &landing : memory.rounds[i].landings)
                landing.gradients = book_slots(*landing.message, of_sums, own);
        });
    const auto book_parcels = [&](std::vector<const Message *> Round::*messages, bool full_ones, annulus_dtype dtype,
                                  std::vector<WireBuffer> RoundMemory::*parcels) {
        book_in_turns(workspace, 0, 1, rounds.size(), [&](std::size_t i, Workspace &own) {
            for (const Message *message : rounds[i].*messages)
                if (full_ones || !message->is_full())
                    (memory.rounds[i].*parcels)
                        .push_back({message, book_table(own, local, *message),
                                    book_pair(own, bytes_of_rows(problem, message->total_rows(), dtype))});
        });
    };
    book_parcels(&Round::sends, true, problem.dtype, &RoundMemory::leaving);
    book_parcels(&Round::receives, false, problem.dtype, &RoundMemory::arriving);
    if (backward) {
        book_parcels(&Round::receives, false, of_sums, &RoundMemory::returning);
        book_parcels(&Round::sends, true, of_sums, &RoundMemory::returned);
    }
    return memory;
}

std::size_t own_bytes(const RingPlan &plan, annulus_pass pass) {
    Workspace ledger;
    book(ledger, plan, pass);
    return ledger.used();
}

// What is left for the engine's steps.
Resources step_resources(const RingPlan &plan, annulus_pass pass, Resources resources) {
    if (resources.workspace_limit) {
        const std::uint64_t own = own_bytes(plan, pass);
        resources.workspace_limit = resources.workspace_limit > own ? resources.workspace_limit - own : 1;
    }
    return resources;
}

// ---- The run.

class RingRun {
  public:
    // Once the delegated constructor is done, the destructor runs where this one throws.
    RingRun(const RingPlan &plan, annulus_pass pass, const annulus_tensor &k, const annulus_tensor &v,
            Workspace &workspace, const RingResources &given)
        : RingRun(plan, pass, k, v, given) {
        memory_ = book(workspace, plan, pass);
        batches_.resize(plan.schedule().rounds().size());
        returns_.resize(batches_.size());
    }

    // A call that fails half-way leaves its messages behind.
    ~RingRun() {
        if (is_done_)
            return;
        transport_.abort();
        try { // a broken transport gives up what was begun
            transport_.finish({}, device_, comm_);
        } catch (const Error &) {
        }
        try {
            order(stream_, comm_);
        } catch (const Error &) { // the one that brought us here is the one to report
        }
    }
    RingRun(const RingRun &) = delete;
    RingRun &operator=(const RingRun &) = delete;

    const RingMemory &memory() const { return memory_; }

    // local_step(), then step(plan, k, v, landing) for each message that comes.
    template <class LocalStep, class Step> void run(LocalStep local_step, Step step) {
        const std::size_t rounds = batches_.size();
        const bool returns = pass_ == ANNULUS_PASS_BACKWARD;
        start(0);
        local_step();
        for (std::size_t i = 0; i < rounds; ++i) {
            if (returns && i >= 2)
                finish_return(i - 2);
            finish(i);
            if (returns && i >= 1)
                start_return(i - 1);
            if (i + 1 < rounds)
                start(i + 1);
            for (const ReceiveSlots &landing : memory_.rounds[i].landings)
                step(plan_.remote(*landing.message), slots_tensor(landing, landing.rows.first()),
                     slots_tensor(landing, landing.rows.second()), landing);
        }
        if (returns) {
            if (rounds >= 2)
                finish_return(rounds - 2);
            start_return(rounds - 1);
            finish_return(rounds - 1);
        }
        order(stream_, comm_);
        is_done_ = true;
    }

  private:
    // Allocates nothing.
    RingRun(const RingPlan &plan, annulus_pass pass, const annulus_tensor &k, const annulus_tensor &v,
            const RingResources &given)
        : plan_(plan), problem_(plan.local().problem()), pass_(pass), transport_(given.transport), mover_(given.mover),
          device_(*given.resources.device), stream_(given.resources.stream), comm_(device_.comm_stream()),
          k_(own_rows(k)), v_(own_rows(v)) {}

    // What `later` is given from now on comes after what `earlier` was given up to now.
    void order(void *later, void *earlier) { device_.wait(later, device_.record(earlier)); }

    RowView own_rows(const annulus_tensor &tensor) const {
        return {tensor.data, tensor.stride[0], tensor.stride[2], tensor.stride[1], problem_.keys.start, 1};
    }

    // Rows that lie head by head.
    RowView packed_rows(std::byte *data, std::int64_t rows, std::int64_t start, std::int64_t stride) const {
        const std::int64_t d = problem_.head_dim;
        return {data, problem_.kv_heads * rows * d, rows * d, d, start, stride};
    }
    RowView slots_of(const Message &message, std::byte *data) const {
        return packed_rows(data, message.slots(), message.keys.start, message.stride);
    }
    annulus_tensor slots_tensor(const ReceiveSlots &landing, std::byte *data) const {
        const std::int64_t slots = landing.message->slots(), d = problem_.head_dim, g = problem_.kv_heads;
        return {data, problem_.dtype, 4, {problem_.batch, slots, g, d}, {g * slots * d, d, slots * d, 1}};
    }

    RowMove move(const WireBuffer &parcel, annulus_dtype dtype, const RowView &rows, std::byte *wire) const {
        return {parcel.message, parcel.table, dtype, problem_.batch, problem_.head_dim, rows, wire};
    }

    static void add_transfer(std::vector<Transfer> &transfers, int peer, const Pair &pair) {
        transfers.push_back({peer, pair.memory, static_cast<std::size_t>(2 * pair.bytes)});
    }

    const WireBuffer *parcel_of(const std::vector<WireBuffer> &parcels, const Message &message) const {
        const auto found = std::find_if(parcels.begin(), parcels.end(),
                                        [&](const WireBuffer &parcel) { return parcel.message == &message; });
        return found == parcels.end() ? nullptr : &*found;
    }

    void start(std::size_t i) {
        const RoundMemory &memory = memory_.rounds[i];
        order(comm_, stream_);
        Batch &batch = batches_[i];
        for (const WireBuffer &parcel : memory.leaving) {
            mover_.fill(parcel.table, plan_.local(), *parcel.message, comm_);
            mover_.pack(move(parcel, problem_.dtype, k_, parcel.wire.first()), comm_);
            mover_.pack(move(parcel, problem_.dtype, v_, parcel.wire.second()), comm_);
            add_transfer(batch.sends, parcel.message->to, parcel.wire);
        }
        for (const ReceiveSlots &landing : memory.landings) {
            const WireBuffer *parcel = parcel_of(memory.arriving, *landing.message);
            add_transfer(batch.receives, landing.message->from, parcel ? parcel->wire : landing.rows);
        }
        transport_.begin(batch, device_, comm_);
    }

    void finish(std::size_t i) {
        const RoundMemory &memory = memory_.rounds[i];
        transport_.finish(batches_[i], device_, comm_);
        for (const ReceiveSlots &landing : memory.landings)
            if (const WireBuffer *parcel = parcel_of(memory.arriving, *landing.message)) {
                const Message &message = *landing.message;
                mover_.fill(parcel->table, plan_.local(), message, comm_);
                mover_.unpack(
                    move(*parcel, problem_.dtype, slots_of(message, landing.rows.first()), parcel->wire.first()),
                    comm_);
                mover_.unpack(
                    move(*parcel, problem_.dtype, slots_of(message, landing.rows.second()), parcel->wire.second()),
                    comm_);
            }
        order(stream_, comm_);
    }

    void start_return(std::size_t i) {
        const RoundMemory &memory = memory_.rounds[i];
        const annulus_dtype dtype = sum_dtype(problem_.dtype);
        order(comm_, stream_);
        Batch &batch = returns_[i];
        for (const ReceiveSlots &landing : memory.landings) {
            const Message &message = *landing.message;
            const WireBuffer *parcel = parcel_of(memory.returning, message);
            if (parcel) {
                mover_.fill(parcel->table, plan_.local(), message, comm_);
                mover_.pack(move(*parcel, dtype, slots_of(message, landing.gradients.first()), parcel->wire.first()),
                            comm_);
                mover_.pack(move(*parcel, dtype, slots_of(message, landing.gradients.second()), parcel->wire.second()),
                            comm_);
            }
            add_transfer(batch.sends, message.from, parcel ? parcel->wire : landing.gradients);
        }
        for (const WireBuffer &parcel : memory.returned)
            add_transfer(batch.receives, parcel.message->to, parcel.wire);
        transport_.begin(batch, device_, comm_);
    }

    void finish_return(std::size_t i) {
        const annulus_dtype dtype = sum_dtype(problem_.dtype);
        const Window &shard = problem_.keys;
        transport_.finish(returns_[i], device_, comm_);
        for (const WireBuffer &parcel : memory_.rounds[i].returned) {
            mover_.fill(parcel.table, plan_.local(), *parcel.message, comm_);
            mover_.add(move(parcel, dtype, packed_rows(memory_.gradients.first(), shard.length, shard.start, 1),
                            parcel.wire.first()),
                       comm_);
            mover_.add(move(parcel, dtype, packed_rows(memory_.gradients.second(), shard.length, shard.start, 1),
                            parcel.wire.second()),
                       comm_);
        }
    }

    const RingPlan &plan_;
    const Problem &problem_;
    const annulus_pass pass_;
    Transport &transport_;
    MessageCopier &mover_;
    Device &device_;
    void *const stream_, *const comm_;
    RingMemory memory_;
    const RowView k_, v_;
    std::vector<Batch> batches_, returns_;
    bool is_done_ = false;
};

} // namespace

std::size_t ring_bytes(const RingPlan &plan, annulus_pass pass, const Engine &engine, const Resources &resources) {
    if (plan.local().problem().queries.length == 0)
        return 0;
    if (!plan.communicates())
        return engine.workspace_bytes(plan.local(), pass, resources);
    const Resources left = step_resources(plan, pass, resources);
    std::size_t most = engine.step_bytes(plan.local(), pass, left);
    for (const Round &round : plan.schedule().rounds())
        for (const Message *message : round.receives)
            most = std::max(most, engine.step_bytes(plan.remote(*message), pass, left));
    Workspace ledger;
    book(ledger, plan, pass);
    ledger.skip(most);
    return ledger.used();
}

void ring_forward(const RingPlan &plan, const ForwardTensors &tensors, Workspace &workspace,
                  const RingResources &resources) {
    const Plan &local = plan.local();
    const Engine &engine = resources.engine;
    if (local.problem().queries.length == 0)
        return;
    if (!plan.communicates()) {
        engine.forward(local, tensors, workspace, resources.resources);
        return;
    }
    const Resources left = step_resources(plan, ANNULUS_PASS_FORWARD, resources.resources);
    RingRun run(plan, ANNULUS_PASS_FORWARD, tensors.k, tensors.v, workspace, resources);
    const ForwardSums sums{run.memory().sums, run.memory().statistics};
    const auto step = [&](const Plan &of_step, const ForwardTensors &of_keys, bool first) {
        Workspace own = workspace; // each step uses the same memory
        engine.forward_step(of_step, of_keys, sums, first, own, left);
    };
    run.run([&] { step(local, tensors, true); },
            [&](const Plan &remote, const annulus_tensor &k, const annulus_tensor &v, const ReceiveSlots &) {
                ForwardTensors arrived = tensors;
                arrived.k = k;
                arrived.v = v;
                step(remote, arrived, false);
            });
    engine.finish_forward(local, tensors, sums, left);
}

void ring_backward(const RingPlan &plan, const BackwardTensors &tensors, Workspace &workspace,
                   const RingResources &resources) {
    const Plan &local = plan.local();
    const Engine &engine = resources.engine;
    if (local.problem().queries.length == 0)
        return;
    if (!plan.communicates()) {
        engine.backward(local, tensors, workspace, resources.resources);
        return;
    }
    const Resources left = step_resources(plan, ANNULUS_PASS_BACKWARD, resources.resources);
    RingRun run(plan, ANNULUS_PASS_BACKWARD, tensors.k, tensors.v, workspace, resources);
    const RingMemory &memory = run.memory();
    const auto step = [&](const Plan &of_step, const BackwardTensors &of_keys, const Pair &gradients, bool first) {
        Workspace own = workspace;
        engine.backward_step(of_step, of_keys, {memory.sums, gradients.first(), gradients.second()}, first, own, left);
    };
    run.run([&] { step(local, tensors, memory.gradients, true); },
            [&](const Plan &remote, const annulus_tensor &k, const annulus_tensor &v, const ReceiveSlots &landing) {
                BackwardTensors arrived = tensors;
                arrived.k = k;
                arrived.v = v;
                step(remote, arrived, landing.gradients, false);
            });
    engine.finish_backward(local, tensors, {memory.sums, memory.gradients.first(), memory.gradients.second()}, left);
}

} // namespace annulus
