// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_executable.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace annulus {

ShardExecutable::ShardExecutable(const ShardPlan &plan, annulus_pass pass, Device &device)
    : plan_(plan), pass_(pass), device_(device) {
    if (!plan.communicates())
        return;
    Workspace ledger;
    memory_.book(ledger, plan, pass);
    memory_bytes_ = ledger.used();
}

const char *ShardExecutable::prepare(const Engine &engine, const Limits &limits) {
    if (plan_.local().problem().queries.length == 0)
        return nullptr;
    if (rounds() == 0)
        return prepare(plan_.local(), KeyScope::all_keys, engine, limits);
    const char *refusal = prepare(plan_.local(), KeyScope::own_keys, engine, limits);
    std::size_t messages = 0;
    for (const RoundMemory &round : memory_.rounds)
        messages += round.received.size();
    for (const RoundMemory &round : memory_.rounds)
        for (const ReceiveSlots &slots : round.received)
            if (!refusal)
                refusal = prepare(plan_.remote(*slots.message),
                                  --messages == 0 ? KeyScope::last_keys : KeyScope::other_keys, engine, limits);
    return refusal;
}

const char *ShardExecutable::prepare(const Plan &plan, KeyScope scope, const Engine &engine, const Limits &limits) {
    Preparation prepared = engine.prepare(plan, pass_, scope, device_, limits);
    if (prepared.refusal)
        return prepared.refusal;
    workspace_bytes_ = std::max(workspace_bytes_, prepared.executable->workspace_bytes());
    executables_.push_back(std::move(prepared.executable));
    return nullptr;
}

const char *ShardExecutable::tensor_refusal(const CallTensors &tensors) const {
    return executables_.empty() ? nullptr : executables_.front()->tensor_refusal(tensors);
}

int ShardExecutable::peer_of(const Message &message) const {
    const Schedule &schedule = plan_.schedule();
    return schedule.owner(message.from == schedule.shard() ? message.to : message.from);
}

ShardRun::ShardRun(ShardExecutable &shard, std::size_t sequence, const CallTensors &tensors, void *memory,
                   const RunPlace &place, MessageCopier &copier)
    : shard_(shard), problem_(shard.plan_.local().problem()), tensors_(tensors), copier_(copier), sequence_(sequence),
      workspace_(place.workspace), stream_(place.stream), comm_(place.comm_stream) {
    if (rounds() == 0)
        return;
    Workspace own(memory);
    shard.memory_.book(own, shard.plan_, shard.pass_);
}

void ShardRun::attend_to_own_keys() {
    if (shard_.executables_.empty())
        return;
    if (rounds() == 0)
        return shard_.executables_.front()->run(tensors_, {}, workspace_, stream_);
    shard_.executables_.front()->run(tensors_, shard_.memory_.own, workspace_, stream_);
    next_executable_ = 1;
}

CallTensors ShardRun::received_tensors(const ReceiveSlots &slots) const {
    CallTensors arrived = tensors_;
    arrived.k = slots_tensor(*slots.message, slots.rows.first());
    arrived.v = slots_tensor(*slots.message, slots.rows.second());
    return arrived;
}

// The executables share a workspace, so only the round's last one may leave work for later.
void ShardRun::attend_to_received_keys(std::size_t round) {
    for (const ReceiveSlots &slots : shard_.memory_.rounds[round].received) {
        Executable &executable = *shard_.executables_[next_executable_++];
        const CallTensors arrived = received_tensors(slots);
        const PartialResults partial = shard_.memory_.partial_results(slots);
        executable.run(arrived, partial, workspace_, stream_);
        if (&slots != &shard_.memory_.rounds[round].received.back())
            executable.run_rest(arrived, partial, workspace_, stream_);
    }
}

void ShardRun::run_rest_of_received_keys(std::size_t round) {
    const std::vector<ReceiveSlots> &received = shard_.memory_.rounds[round].received;
    if (!received.empty())
        shard_.executables_[next_executable_ - 1]->run_rest(
            received_tensors(received.back()), shard_.memory_.partial_results(received.back()), workspace_, stream_);
}

void ShardRun::run_rest_of_own_keys() {
    if (rounds() > 0)
        shard_.executables_.front()->run_rest(tensors_, shard_.memory_.own, workspace_, stream_);
}

void ShardRun::write_outputs() {
    if (rounds() > 0)
        shard_.executables_.front()->write_unfinished(tensors_, shard_.memory_.own, stream_);
}

RowView ShardRun::own_rows(const annulus_tensor &tensor) const {
    return {tensor.data, tensor.stride[0], tensor.stride[2], tensor.stride[1], problem_.keys.start, 1};
}

// Returns a view of rows that lie [B, G, rows, D].
RowView ShardRun::packed_rows(void *data, std::int64_t rows, std::int64_t start, std::int64_t stride) const {
    const std::int64_t d = problem_.head_dim;
    return {data, problem_.kv_heads * rows * d, rows * d, d, start, stride};
}

RowView ShardRun::slot_rows(const Message &message, std::byte *data) const {
    return packed_rows(data, message.slots(), message.keys.start, message.stride);
}

RowView ShardRun::own_gradients(void *data) const {
    return packed_rows(data, problem_.keys.length, problem_.keys.start, 1);
}

annulus_tensor ShardRun::slots_tensor(const Message &message, std::byte *data) const {
    const std::int64_t slots = message.slots(), d = problem_.head_dim, g = problem_.kv_heads;
    return {data, problem_.dtype, 4, {problem_.batch, slots, g, d}, {g * slots * d, d, slots * d, 1}};
}

// Packs, unpacks or adds between the wire and the rows of two tensors, or of the second tensor alone.
void ShardRun::copy(void (MessageCopier::*way)(const RowMove &, void *), const WireBuffer &buffer, annulus_dtype dtype,
                    const RowView &first, const RowView &second) {
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

ShardTransfer ShardRun::make_transfer(const Message &message, const RowPair &pair) const {
    return {&message, sequence_, shard_.peer_of(message), pair.memory, pair.total_bytes()};
}

const RowPair &ShardExecutable::returning_gradients(std::size_t round, const ReceiveSlots &slots) const {
    return slots.buffer ? memory_.rounds[round].returning[*slots.buffer].wire : slots.gradients;
}

void ShardRun::list_rows(std::size_t i, ShardBatch &batch) {
    const RoundMemory &round = shard_.memory_.rounds[i];
    copier_.fill(round.tables, shard_.plan_.local(), comm_);
    for (const WireBuffer &buffer : round.leaving) {
        ShardTransfer &send = batch.sends.emplace_back(make_transfer(*buffer.message, buffer.wire));
        send.sender = this;
        send.buffer = &buffer;
    }
    for (const ReceiveSlots &slots : round.received)
        batch.receives.push_back(
            make_transfer(*slots.message, slots.buffer ? round.arriving[*slots.buffer].wire : slots.rows));
}

void ShardRun::list_gradients(std::size_t i, ShardBatch &batch) {
    const RoundMemory &round = shard_.memory_.rounds[i];
    copier_.fill(round.gradient_tables, shard_.plan_.local(), comm_);
    for (const ReceiveSlots &slots : round.received) {
        ShardTransfer &send =
            batch.sends.emplace_back(make_transfer(*slots.message, shard_.returning_gradients(i, slots)));
        send.sender = this;
        send.buffer = slots.buffer ? &round.returning[*slots.buffer] : nullptr;
        send.slots = &slots;
    }
    for (const WireBuffer &buffer : round.returned)
        batch.receives.push_back(make_transfer(*buffer.message, buffer.wire));
}

void ShardRun::write(const ShardTransfer &send) {
    if (!send.buffer) { // gradients that leave as they lie
        if (send.data != send.slots->gradients.memory)
            shard_.device_.copy(send.data, send.slots->gradients.memory, send.bytes, comm_);
        return;
    }
    WireBuffer buffer = *send.buffer;
    buffer.wire.memory = send.data;
    if (send.slots)
        copy(&MessageCopier::pack, buffer, sum_dtype(problem_.dtype),
             slot_rows(*send.message, send.slots->gradients.first()),
             slot_rows(*send.message, send.slots->gradients.second()));
    else
        copy(&MessageCopier::pack, buffer, problem_.dtype, own_rows(tensors_.k), own_rows(tensors_.v));
}

void ShardRun::unpack_rows(std::size_t i) {
    const RoundMemory &round = shard_.memory_.rounds[i];
    for (const ReceiveSlots &slots : round.received)
        if (slots.buffer)
            copy(&MessageCopier::unpack, round.arriving[*slots.buffer], problem_.dtype,
                 slot_rows(*slots.message, slots.rows.first()), slot_rows(*slots.message, slots.rows.second()));
}

void ShardRun::add_gradients(std::size_t i) {
    for (const WireBuffer &buffer : shard_.memory_.rounds[i].returned)
        copy(&MessageCopier::add, buffer, sum_dtype(problem_.dtype), own_gradients(shard_.memory_.own.d_k),
             own_gradients(shard_.memory_.own.d_v));
}

} // namespace annulus
