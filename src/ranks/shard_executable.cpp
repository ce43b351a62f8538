// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_executable.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace annulus {

ShardExecutable::ShardExecutable(const ShardPlan &plan, annulus_pass pass, const Engine &engine, Device &device,
                                 const Limits &limits)
    : plan_(plan), pass_(pass), engine_(engine), device_(device), sums_(plan, pass, engine, device, limits) {
    if (!plan.communicates())
        return;
    Workspace ledger;
    memory_.book(ledger, plan, pass, sums_);
    memory_bytes_ = ledger.used();
}

const char *ShardExecutable::prepare(const Limits &limits) {
    if (plan_.local().problem().queries.length == 0)
        return nullptr;
    if (!has_partial_results())
        return prepare(plan_.local(), KeyScope::all_keys, limits);
    const char *refusal = prepare(plan_.local(), KeyScope::own_keys, limits);
    std::size_t left = 0;
    for (const std::vector<ReceivedKeys> &received : plan_.received())
        left += received.size();
    for (const std::vector<ReceivedKeys> &received : plan_.received())
        for (const ReceivedKeys &keys : received)
            if (!refusal)
                refusal = prepare(keys.plan, --left == 0 ? KeyScope::last_keys : KeyScope::other_keys, limits);
    return refusal;
}

const char *ShardExecutable::prepare(const Plan &plan, KeyScope scope, const Limits &limits) {
    Preparation prepared = engine_.prepare(plan, pass_, scope, device_, limits);
    if (prepared.refusal)
        return prepared.refusal;
    workspace_bytes_ = std::max(workspace_bytes_, prepared.executable->workspace_bytes());
    Workspace apart;
    apart.skip(apart_bytes());
    apart.skip(Workspace::aligned(prepared.executable->workspace_bytes()));
    apart_offsets_.push_back(apart.used());
    executables_.push_back(std::move(prepared.executable));
    return nullptr;
}

bool ShardExecutable::runs_beside_others() const {
    return std::ranges::all_of(executables_, [](const auto &executable) { return executable->runs_beside_others(); });
}

std::size_t ShardExecutable::apart_bytes() const {
    return apart_offsets_.empty() ? 0 : apart_offsets_.back();
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
      workspace_(static_cast<std::byte *>(place.workspace)), is_apart_(place.is_apart), stream_(place.stream),
      comm_(place.comm_stream) {
    if (rounds() == 0)
        return;
    Workspace own(memory);
    shard.memory_.book(own, shard.plan_, shard.pass_, shard.sums_);
}

void *ShardRun::workspace_of(std::size_t executable) const {
    return is_apart_ && executable > 0 ? workspace_ + shard_.apart_offsets_[executable - 1] : workspace_;
}

void ShardRun::begin_own_keys() {
    if (shard_.has_partial_results() && !shard_.executables_.empty())
        shard_.executables_.front()->begin(tensors_, shard_.memory_.own, workspace_of(0), stream_);
}

void ShardRun::begin_received_keys(std::size_t round, void *stream) {
    std::size_t i = next_executable_;
    for (const ReceiveSlots &slots : shard_.memory_.rounds[round].slots) {
        shard_.executables_[i]->begin(received_tensors(slots), shard_.memory_.partial_results(slots), workspace_of(i),
                                      stream);
        ++i;
    }
}

void ShardRun::attend_to_own_keys() {
    if (!shard_.executables_.empty())
        shard_.executables_.front()->run(tensors_, shard_.memory_.own, workspace_of(0), stream_);
}

CallTensors ShardRun::received_tensors(const ReceiveSlots &slots) const {
    CallTensors arrived = tensors_;
    arrived.k = slots_tensor(*slots.keys, slots.rows.first());
    arrived.v = slots_tensor(*slots.keys, slots.rows.second());
    return arrived;
}

// Executables that share a workspace finish one after the other. So only the round's last one may leave work for later.
void ShardRun::attend_to_received_keys(std::size_t round, void *stream, bool follows) {
    const std::vector<ReceiveSlots> &all = shard_.memory_.rounds[round].slots;
    first_of_round_ = next_executable_;
    for (const ReceiveSlots &slots : all) {
        const std::size_t i = next_executable_++;
        Executable &executable = *shard_.executables_[i];
        const CallTensors arrived = received_tensors(slots);
        const PartialResults partial = shard_.memory_.partial_results(slots);
        if (follows)
            executable.let_begin_early();
        executable.run(arrived, partial, workspace_of(i), stream);
        if (!is_apart_ && &slots != &all.back())
            executable.run_rest(arrived, partial, workspace_of(i), stream);
        follows = is_apart_;
    }
}

void ShardRun::run_rest_of_received_keys(std::size_t round, bool follows) {
    const std::vector<ReceiveSlots> &all = shard_.memory_.rounds[round].slots;
    for (std::size_t at = is_apart_ || all.empty() ? 0 : all.size() - 1; at < all.size(); ++at) {
        const std::size_t i = first_of_round_ + at;
        if (follows)
            shard_.executables_[i]->let_begin_early();
        shard_.executables_[i]->run_rest(received_tensors(all[at]), shard_.memory_.partial_results(all[at]),
                                         workspace_of(i), stream_);
        follows = is_apart_;
    }
}

void ShardRun::run_rest_of_own_keys(bool follows) {
    if (!shard_.has_partial_results() || shard_.executables_.empty())
        return;
    if (follows)
        shard_.executables_.front()->let_begin_early();
    shard_.executables_.front()->run_rest(tensors_, shard_.memory_.own, workspace_of(0), stream_);
}

void ShardRun::write_outputs() {
    if (shard_.has_partial_results())
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

RowView ShardRun::slot_rows(const ReceivedKeys &keys, std::byte *data) const {
    return packed_rows(data, keys.slots(), keys.keys.start, keys.stride);
}

// Returns the sums of a gradient of the shard's keys: partial results, or the caller's tensor if there are none.
RowView ShardRun::own_gradients(void *partial, const annulus_tensor &tensor) const {
    if (!partial)
        return own_rows(tensor);
    const SummedRows *const summed = shard_.memory_.own.summed_keys;
    RowView rows = packed_rows(partial, summed ? summed->count() : problem_.keys.length, problem_.keys.start, 1);
    rows.summed = summed;
    return rows;
}

annulus_tensor ShardRun::slots_tensor(const ReceivedKeys &keys, std::byte *data) const {
    const std::int64_t slots = keys.slots(), d = problem_.head_dim, g = problem_.kv_heads;
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

const RowPair &ShardExecutable::returning_gradients(std::size_t i, const ReceivedMessage &received) const {
    const RoundMemory &round = memory_.rounds[i];
    return received.buffer ? round.returning[*received.buffer].wire : round.slots[received.slots].gradients;
}

void ShardRun::list_rows(std::size_t i, ShardBatch &batch) {
    const RoundMemory &round = shard_.memory_.rounds[i];
    copier_.fill(round.tables, shard_.plan_.local(), comm_);
    for (const WireBuffer &buffer : round.leaving) {
        ShardTransfer &send = batch.sends.emplace_back(make_transfer(*buffer.message, buffer.wire));
        send.sender = this;
        send.buffer = &buffer;
    }
    for (const ReceivedMessage &received : round.received)
        batch.receives.push_back(make_transfer(*received.message, received.buffer
                                                                      ? round.arriving[*received.buffer].wire
                                                                      : round.slots[received.slots].rows));
}

void ShardRun::list_gradients(std::size_t i, ShardBatch &batch) {
    const RoundMemory &round = shard_.memory_.rounds[i];
    copier_.fill(round.gradient_tables, shard_.plan_.local(), comm_);
    for (const ReceivedMessage &received : round.received) {
        ShardTransfer &send =
            batch.sends.emplace_back(make_transfer(*received.message, shard_.returning_gradients(i, received)));
        send.sender = this;
        send.buffer = received.buffer ? &round.returning[*received.buffer] : nullptr;
        send.slots = &round.slots[received.slots];
    }
    for (const WireBuffer &buffer : round.returned)
        batch.receives.push_back(make_transfer(*buffer.message, buffer.wire));
}

bool ShardRun::write(const ShardTransfer &send) {
    if (!send.buffer) { // gradients that leave as they lie
        if (send.data == send.slots->gradients.memory)
            return false;
        shard_.device_.copy(send.data, send.slots->gradients.memory, send.bytes, comm_);
        return true;
    }
    WireBuffer buffer = *send.buffer;
    buffer.wire.memory = send.data;
    if (send.slots)
        copy(&MessageCopier::pack, buffer, sum_dtype(problem_.dtype),
             slot_rows(*send.slots->keys, send.slots->gradients.first()),
             slot_rows(*send.slots->keys, send.slots->gradients.second()));
    else
        copy(&MessageCopier::pack, buffer, problem_.dtype, own_rows(tensors_.k), own_rows(tensors_.v));
    return true;
}

void ShardRun::unpack_rows(std::size_t i) {
    const RoundMemory &round = shard_.memory_.rounds[i];
    for (const ReceivedMessage &received : round.received) {
        const ReceiveSlots &slots = round.slots[received.slots];
        if (received.buffer)
            copy(&MessageCopier::unpack, round.arriving[*received.buffer], problem_.dtype,
                 slot_rows(*slots.keys, slots.rows.first()), slot_rows(*slots.keys, slots.rows.second()));
    }
}

void ShardRun::add_gradients(std::size_t i) {
    for (const WireBuffer &buffer : shard_.memory_.rounds[i].returned)
        copy(&MessageCopier::add, buffer, sum_dtype(problem_.dtype),
             own_gradients(shard_.memory_.own.d_k, tensors_.d_k), own_gradients(shard_.memory_.own.d_v, tensors_.d_v));
}

} // namespace annulus
