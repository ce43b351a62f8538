// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_call.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace annulus {

ShardCall::ShardCall(const RankPlan &plan, annulus_pass pass, const Engine &engine, Device &device,
                     const Limits &limits)
    : plan_(plan), pass_(pass), device_(device) {
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
    std::size_t others = 0;
    for (const RoundMemory &round : memory_.rounds)
        others += round.received.size();
    for (const RoundMemory &round : memory_.rounds)
        for (const ReceiveSlots &slots : round.received)
            prepare(plan.remote(*slots.message), --others == 0 ? CallPart::last_keys : CallPart::other_keys, engine,
                    left);
    bytes_ += own_bytes_;
}

// All parts use the same workspace: what the first leaves in it, such as O . dO of the queries, the others read.
void ShardCall::prepare(const Plan &plan, CallPart part, const Engine &engine, const Limits &limits) {
    if (refusal_)
        return;
    Preparation prepared = engine.prepare(plan, pass_, part, device_, limits);
    refusal_ = prepared.refusal;
    if (refusal_)
        return;
    bytes_ = std::max(bytes_, prepared.call->workspace_bytes());
    parts_.push_back(std::move(prepared.call));
}

const char *ShardCall::tensor_refusal(const CallTensors &tensors) const {
    return parts_.empty() ? nullptr : parts_.front()->tensor_refusal(tensors);
}

ShardCall::Run::Run(ShardCall &call, const CallTensors &tensors, void *workspace, void *stream, void *comm_stream,
                    MessageCopier &copier)
    : call_(call), problem_(call.plan_.local().problem()), tensors_(tensors), copier_(copier), workspace_(workspace),
      stream_(stream), comm_(comm_stream) {
    if (rounds() == 0)
        return;
    Workspace own(workspace);
    call.memory_.book(own, call.plan_, call.pass_);
    of_parts_ = workspace ? static_cast<std::byte *>(workspace) + own.used() : nullptr;
}

void ShardCall::Run::attend_to_own_keys() {
    if (call_.parts_.empty())
        return;
    if (rounds() == 0)
        return call_.parts_.front()->run(tensors_, {}, workspace_, stream_);
    call_.parts_.front()->run(tensors_, call_.memory_.own, of_parts_, stream_);
    next_part_ = 1;
}

CallTensors ShardCall::Run::tensors_of(const ReceiveSlots &slots) const {
    CallTensors arrived = tensors_;
    arrived.k = slots_tensor(*slots.message, slots.rows.first());
    arrived.v = slots_tensor(*slots.message, slots.rows.second());
    return arrived;
}

// Parts share the workspace: all but the last are done at once.
void ShardCall::Run::attend_to_others(std::size_t round) {
    for (const ReceiveSlots &slots : call_.memory_.rounds[round].received) {
        PreparedCall &part = *call_.parts_[next_part_++];
        const CallTensors arrived = tensors_of(slots);
        const PartialResults partial = call_.memory_.partial_results(slots);
        part.run(arrived, partial, of_parts_, stream_);
        if (&slots != &call_.memory_.rounds[round].received.back())
            part.run_rest(arrived, partial, of_parts_, stream_);
    }
}

void ShardCall::Run::finish_others(std::size_t round) {
    const std::vector<ReceiveSlots> &received = call_.memory_.rounds[round].received;
    if (!received.empty())
        call_.parts_[next_part_ - 1]->run_rest(tensors_of(received.back()),
                                               call_.memory_.partial_results(received.back()), of_parts_, stream_);
}

void ShardCall::Run::finish_own_keys() {
    if (rounds() > 0)
        call_.parts_.front()->run_rest(tensors_, call_.memory_.own, of_parts_, stream_);
}

void ShardCall::Run::write_outputs() {
    if (rounds() > 0)
        call_.parts_.front()->finish(tensors_, call_.memory_.own, stream_);
}

RowView ShardCall::Run::own_rows(const annulus_tensor &tensor) const {
    return {tensor.data, tensor.stride[0], tensor.stride[2], tensor.stride[1], problem_.keys.start, 1};
}

// Rows that lie head by head.
RowView ShardCall::Run::packed_rows(void *data, std::int64_t rows, std::int64_t start, std::int64_t stride) const {
    const std::int64_t d = problem_.head_dim;
    return {data, problem_.kv_heads * rows * d, rows * d, d, start, stride};
}

RowView ShardCall::Run::slots_of(const Message &message, std::byte *data) const {
    return packed_rows(data, message.slots(), message.keys.start, message.stride);
}

RowView ShardCall::Run::own_gradients(void *data) const {
    return packed_rows(data, problem_.keys.length, problem_.keys.start, 1);
}

annulus_tensor ShardCall::Run::slots_tensor(const Message &message, std::byte *data) const {
    const std::int64_t slots = message.slots(), d = problem_.head_dim, g = problem_.kv_heads;
    return {data, problem_.dtype, 4, {problem_.batch, slots, g, d}, {g * slots * d, d, slots * d, 1}};
}

// Between the wire and the rows of two tensors, or of the second alone: pack, unpack or add.
void ShardCall::Run::copy(void (MessageCopier::*way)(const RowMove &, void *), const WireBuffer &buffer,
                          annulus_dtype dtype, const RowView &first, const RowView &second) {
    RowMove move{buffer.message,
                 buffer.table,
                 dtype,
                 problem_.batch,
                 problem_.head_dim,
                 buffer.wire.tensors,
                 {{{second, buffer.wire.second()}}}};
    if (move.tensors == 2)
        move.tensor_ends = {{{first, buffer.wire.first()}, {second, buffer.wire.second()}}};
    (copier_.*way)(move, comm_);
}

namespace {

const WireBuffer *buffer_of(const std::vector<WireBuffer> &buffers, const Message &message) {
    const auto found = std::find_if(buffers.begin(), buffers.end(),
                                    [&](const WireBuffer &buffer) { return buffer.message == &message; });
    return found == buffers.end() ? nullptr : &*found;
}

} // namespace

ShardTransfer ShardCall::Run::transfer_of(const Message &message, const RowPair &pair) {
    return {&message, pair.memory, bytes_of(pair)};
}

const RowPair &ShardCall::returning_gradients(std::size_t round, const ReceiveSlots &slots) const {
    const WireBuffer *const buffer = buffer_of(memory_.rounds[round].returning, *slots.message);
    return buffer ? buffer->wire : slots.gradients;
}

void ShardCall::Run::list_rows(std::size_t i, ShardBatch &batch) {
    const RoundMemory &round = call_.memory_.rounds[i];
    copier_.fill(round.tables, call_.plan_.local(), comm_);
    for (const WireBuffer &buffer : round.leaving) {
        ShardTransfer &send = batch.sends.emplace_back(transfer_of(*buffer.message, buffer.wire));
        send.sender = this;
        send.buffer = &buffer;
    }
    for (const ReceiveSlots &slots : round.received) {
        const WireBuffer *buffer = buffer_of(round.arriving, *slots.message);
        batch.receives.push_back(transfer_of(*slots.message, buffer ? buffer->wire : slots.rows));
    }
}

void ShardCall::Run::list_gradients(std::size_t i, ShardBatch &batch) {
    const RoundMemory &round = call_.memory_.rounds[i];
    copier_.fill(round.tables_of_gradients, call_.plan_.local(), comm_);
    for (const ReceiveSlots &slots : round.received) {
        ShardTransfer &send =
            batch.sends.emplace_back(transfer_of(*slots.message, call_.returning_gradients(i, slots)));
        send.sender = this;
        send.buffer = buffer_of(round.returning, *slots.message);
        send.slots = &slots;
    }
    for (const WireBuffer &buffer : round.returned)
        batch.receives.push_back(transfer_of(*buffer.message, buffer.wire));
}

void ShardCall::Run::write(const ShardTransfer &send) {
    if (!send.buffer) { // full: gradients leave as they lie
        if (send.data != send.slots->gradients.memory)
            call_.device_.copy(send.data, send.slots->gradients.memory, send.bytes, comm_);
        return;
    }
    WireBuffer buffer = *send.buffer;
    buffer.wire.memory = send.data;
    if (send.slots)
        copy(&MessageCopier::pack, buffer, sum_dtype(problem_.dtype),
             slots_of(*send.message, send.slots->gradients.first()),
             slots_of(*send.message, send.slots->gradients.second()));
    else
        copy(&MessageCopier::pack, buffer, problem_.dtype, own_rows(tensors_.k), own_rows(tensors_.v));
}

void ShardCall::Run::unpack_rows(std::size_t i) {
    const RoundMemory &round = call_.memory_.rounds[i];
    for (const ReceiveSlots &slots : round.received)
        if (const WireBuffer *buffer = buffer_of(round.arriving, *slots.message))
            copy(&MessageCopier::unpack, *buffer, problem_.dtype, slots_of(*slots.message, slots.rows.first()),
                 slots_of(*slots.message, slots.rows.second()));
}

void ShardCall::Run::add_gradients(std::size_t i) {
    for (const WireBuffer &buffer : call_.memory_.rounds[i].returned)
        copy(&MessageCopier::add, buffer, sum_dtype(problem_.dtype), own_gradients(call_.memory_.own.d_k),
             own_gradients(call_.memory_.own.d_v));
}

} // namespace annulus
