// SPDX-License-Identifier: Apache-2.0
// The order of a call, on a GPU of two streams, the call's and the one for communication:
//
//     send and receive round 0            | own keys
//     send and receive round 1            | keys of round 0
//     return gradients of round 0, round 2 | keys of round 1
//     …
//
// Batches are begun and finished in one order on all ranks, whatever each of them has to do in a round.
#include "ranks/rank_call.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

namespace annulus {

RankCall::RankCall(const RankPlan &plan, annulus_pass pass, const Engine &engine, Device &device, const Limits &limits)
    : plan_(plan), pass_(pass), device_(device) {
    if (!engine.has_parts)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "engine %s computes on one rank only", engine_name(engine.id));
    if (plan.local().problem().queries.length == 0)
        return;
    if (!plan.communicates()) {
        prepare(plan.local(), CallPart::whole, engine, limits);
        return;
    }
    Workspace ledger;
    memory_.book(ledger, plan, pass);
    own_bytes_ = ledger.used();
    Limits left = limits;
    if (limits.workspace_limit)
        left.workspace_limit = limits.workspace_limit > own_bytes_ ? limits.workspace_limit - own_bytes_ : 1;
    prepare(plan.local(), CallPart::own_keys, engine, left);
    for (const RoundMemory &round : memory_.rounds)
        for (const ReceiveSlots &slots : round.received)
            prepare(plan.remote(*slots.message), CallPart::other_keys, engine, left);
    for (const RoundMemory &round : memory_.rounds) {
        const std::size_t sends = round.leaving.size(), receives = round.received.size();
        for (auto [batches, sent, received] : {std::tuple(&batches_, sends, receives), {&returns_, receives, sends}}) {
            Batch &batch = batches->emplace_back();
            batch.sends.reserve(sent);
            batch.receives.reserve(received);
        }
    }
    bytes_ += own_bytes_;
}

// All parts use the same workspace.
void RankCall::prepare(const Plan &plan, CallPart part, const Engine &engine, const Limits &limits) {
    if (refusal_)
        return;
    Preparation prepared = engine.prepare(plan, pass_, part, device_, limits);
    refusal_ = prepared.refusal;
    if (refusal_)
        return;
    bytes_ = std::max(bytes_, prepared.call->workspace_bytes());
    parts_.push_back(std::move(prepared.call));
}

const char *RankCall::tensor_refusal(const CallTensors &tensors) const {
    return parts_.empty() ? nullptr : parts_.front()->tensor_refusal(tensors);
}

// What one call does with its messages and parts.
class RankCall::Run {
  public:
    Run(RankCall &call, const CallTensors &tensors, void *workspace, void *stream, Transport &transport,
        MessageCopier &copier)
        : call_(call), memory_(call.memory_), problem_(call.plan_.local().problem()), tensors_(tensors),
          transport_(transport), copier_(copier), streams_(call.device_.streams()), stream_(stream),
          comm_(streams_ ? streams_->comm_stream() : nullptr) {
        Workspace own(workspace);
        memory_.book(own, call.plan_, call.pass_);
        for (std::vector<Batch> *batches : {&call.batches_, &call.returns_})
            for (Batch &batch : *batches) {
                batch.sends.clear();
                batch.receives.clear();
            }
        of_parts_ = workspace ? static_cast<std::byte *>(workspace) + own.used() : nullptr;
    }

    // A call that fails half-way leaves its messages behind.
    ~Run() {
        if (is_done_)
            return;
        transport_.abort();
        try { // a broken transport gives up what was begun
            transport_.finish({}, call_.device_, comm_);
        } catch (const Error &) {
        }
        try {
            order(stream_, comm_);
        } catch (const Error &) { // the one that brought us here is the one to report
        }
    }
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;

    void run() {
        const std::size_t rounds = memory_.rounds.size();
        const bool returns = call_.pass_ == ANNULUS_PASS_BACKWARD;
        auto part = call_.parts_.begin();
        PreparedCall &own_keys = **part++;
        start(0);
        own_keys.run(tensors_, memory_.own, of_parts_, stream_);
        for (std::size_t i = 0; i < rounds; ++i) {
            if (returns && i >= 2)
                finish_return(i - 2);
            finish(i);
            if (returns && i >= 1)
                start_return(i - 1);
            if (i + 1 < rounds)
                start(i + 1);
            for (const ReceiveSlots &slots : memory_.rounds[i].received)
                attend_to(slots, **part++);
        }
        if (returns) {
            if (rounds >= 2)
                finish_return(rounds - 2);
            start_return(rounds - 1);
            finish_return(rounds - 1);
        }
        order(stream_, comm_);
        is_done_ = true;
        own_keys.finish(tensors_, memory_.own, stream_);
    }

  private:
    // What `later` is given from now on comes after what `earlier` was given up to now.
    void order(void *later, void *earlier) {
        if (streams_)
            streams_->wait(later, streams_->record(earlier));
    }

    void attend_to(const ReceiveSlots &slots, PreparedCall &part) {
        CallTensors arrived = tensors_;
        arrived.k = slots_tensor(*slots.message, slots.rows.first());
        arrived.v = slots_tensor(*slots.message, slots.rows.second());
        part.run(arrived, memory_.partial_results(slots), of_parts_, stream_);
    }

    RowView own_rows(const annulus_tensor &tensor) const {
        return {tensor.data, tensor.stride[0], tensor.stride[2], tensor.stride[1], problem_.keys.start, 1};
    }
    // Rows that lie head by head.
    RowView packed_rows(void *data, std::int64_t rows, std::int64_t start, std::int64_t stride) const {
        const std::int64_t d = problem_.head_dim;
        return {data, problem_.kv_heads * rows * d, rows * d, d, start, stride};
    }
    RowView slots_of(const Message &message, std::byte *data) const {
        return packed_rows(data, message.slots(), message.keys.start, message.stride);
    }
    RowView own_gradients(void *data) const { return packed_rows(data, problem_.keys.length, problem_.keys.start, 1); }
    annulus_tensor slots_tensor(const Message &message, std::byte *data) const {
        const std::int64_t slots = message.slots(), d = problem_.head_dim, g = problem_.kv_heads;
        return {data, problem_.dtype, 4, {problem_.batch, slots, g, d}, {g * slots * d, d, slots * d, 1}};
    }

    // Between the wire and the rows of two tensors: pack, unpack or add.
    void copy(void (MessageCopier::*way)(const RowMove &, void *), const WireBuffer &buffer, annulus_dtype dtype,
              const RowView &first, const RowView &second) {
        const Message &message = *buffer.message;
        for (const auto &[rows, wire] : {std::pair(&first, buffer.wire.first()), {&second, buffer.wire.second()}})
            (copier_.*way)({&message, buffer.table, dtype, problem_.batch, problem_.head_dim, *rows, wire}, comm_);
    }

    void fill_tables(const std::vector<WireBuffer> &buffers) {
        for (const WireBuffer &buffer : buffers)
            copier_.fill(buffer.table, call_.plan_.local(), *buffer.message, comm_);
    }

    static void add_transfer(std::vector<Transfer> &transfers, int peer, const RowPair &pair) {
        transfers.push_back({peer, pair.memory, static_cast<std::size_t>(2 * pair.bytes)});
    }

    static const WireBuffer *buffer_of(const std::vector<WireBuffer> &buffers, const Message &message) {
        const auto found = std::find_if(buffers.begin(), buffers.end(),
                                        [&](const WireBuffer &buffer) { return buffer.message == &message; });
        return found == buffers.end() ? nullptr : &*found;
    }

    void start(std::size_t i) {
        const RoundMemory &round = memory_.rounds[i];
        order(comm_, stream_);
        Batch &batch = call_.batches_[i];
        fill_tables(round.leaving);
        fill_tables(round.arriving);
        for (const WireBuffer &buffer : round.leaving) {
            copy(&MessageCopier::pack, buffer, problem_.dtype, own_rows(tensors_.k), own_rows(tensors_.v));
            add_transfer(batch.sends, buffer.message->to, buffer.wire);
        }
        for (const ReceiveSlots &slots : round.received) {
            const WireBuffer *buffer = buffer_of(round.arriving, *slots.message);
            add_transfer(batch.receives, slots.message->from, buffer ? buffer->wire : slots.rows);
        }
        // What is computed next would leave no multiprocessor to all this, and the others wait for it.
        order(stream_, comm_);
        transport_.begin(batch, call_.device_, comm_);
    }

    void finish(std::size_t i) {
        const RoundMemory &round = memory_.rounds[i];
        transport_.finish(call_.batches_[i], call_.device_, comm_);
        for (const ReceiveSlots &slots : round.received)
            if (const WireBuffer *buffer = buffer_of(round.arriving, *slots.message))
                copy(&MessageCopier::unpack, *buffer, problem_.dtype, slots_of(*slots.message, slots.rows.first()),
                     slots_of(*slots.message, slots.rows.second()));
        order(stream_, comm_);
    }

    void start_return(std::size_t i) {
        const RoundMemory &round = memory_.rounds[i];
        order(comm_, stream_);
        Batch &batch = call_.returns_[i];
        fill_tables(round.returning);
        fill_tables(round.returned);
        for (const ReceiveSlots &slots : round.received) {
            const WireBuffer *buffer = buffer_of(round.returning, *slots.message);
            if (buffer)
                copy(&MessageCopier::pack, *buffer, sum_dtype(problem_.dtype),
                     slots_of(*slots.message, slots.gradients.first()),
                     slots_of(*slots.message, slots.gradients.second()));
            add_transfer(batch.sends, slots.message->from, buffer ? buffer->wire : slots.gradients);
        }
        for (const WireBuffer &buffer : round.returned)
            add_transfer(batch.receives, buffer.message->to, buffer.wire);
        order(stream_, comm_);
        transport_.begin(batch, call_.device_, comm_);
    }

    void finish_return(std::size_t i) {
        transport_.finish(call_.returns_[i], call_.device_, comm_);
        for (const WireBuffer &buffer : memory_.rounds[i].returned)
            copy(&MessageCopier::add, buffer, sum_dtype(problem_.dtype), own_gradients(memory_.own.d_k),
                 own_gradients(memory_.own.d_v));
    }

    RankCall &call_;
    RankMemory &memory_;
    const Problem &problem_;
    const CallTensors &tensors_;
    Transport &transport_;
    MessageCopier &copier_;
    DeviceStreams *const streams_;
    void *const stream_, *const comm_;
    void *of_parts_ = nullptr; // their workspace
    bool is_done_ = false;
};

void RankCall::run(const CallTensors &tensors, void *workspace, void *stream, Transport &transport,
                   MessageCopier &copier) {
    if (parts_.empty())
        return;
    if (!plan_.communicates()) {
        parts_.front()->run(tensors, {}, workspace, stream);
        return;
    }
    Run(*this, tensors, workspace, stream, transport, copier).run();
}

} // namespace annulus
