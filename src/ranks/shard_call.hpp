// SPDX-License-Identifier: Apache-2.0
// A call for one shard of a sequence that several ranks share: its queries meet its own keys while rows of other shards
// are on their way, then each of those as it arrives, in one running softmax. Backward returns the gradients of the
// rows that came to their owners, who add them up in the order of the hops: the same bits every time.
#pragma once

#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"
#include "ranks/rank_memory.hpp"
#include "ranks/rank_plan.hpp"
#include "transport/transport.hpp"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace annulus {

// One shard's part of a call, prepared once. Used by one thread at a time.
class ShardCall {
  public:
    // `plan` and `device` outlive it.
    ShardCall(const RankPlan &plan, annulus_pass pass, const Engine &engine, Device &device, const Limits &limits);

    // Why the engine cannot serve the shard, or cannot take its tensors; null if it can. Rows that arrive from other
    // shards suit every engine.
    const char *refusal() const { return refusal_; }
    const char *tensor_refusal(const CallTensors &tensors) const;
    std::int64_t row_alignment() const { return parts_.empty() ? 1 : parts_.front()->row_alignment(); }

    // Within the limit where the engine can keep it.
    std::size_t workspace_bytes() const { return bytes_; }
    // Rounds of messages; 0 where the shard has none with others.
    std::size_t rounds() const { return parts_.empty() || !plan_.communicates() ? 0 : memory_.rounds.size(); }
    std::size_t sends_of(std::size_t round) const { return memory_.rounds[round].leaving.size(); }
    std::size_t receives_of(std::size_t round) const { return memory_.rounds[round].received.size(); }

    // use(message, bytes) for what the shard sends in a round: rows, or gradients of received ones.
    template <class Use> void for_each_send(std::size_t round, bool are_gradients, const Use &use) const {
        if (are_gradients)
            for (const ReceiveSlots &slots : memory_.rounds[round].received)
                use(*slots.message, bytes_of(returning_gradients(round, slots)));
        else
            for (const WireBuffer &buffer : memory_.rounds[round].leaving)
                use(*buffer.message, bytes_of(buffer.wire));
    }

    // What one run does with its messages and parts, step by step (rank_call.cpp says in which order).
    class Run;

  private:
    // Of all its tensors.
    static std::size_t bytes_of(const RowPair &pair) { return static_cast<std::size_t>(pair.tensors * pair.bytes); }
    // On the wire: the gradients of a message's rows, where it came from.
    const RowPair &returning_gradients(std::size_t round, const ReceiveSlots &slots) const;
    void prepare(const Plan &plan, CallPart part, const Engine &engine, const Limits &limits);

    const RankPlan &plan_;
    const annulus_pass pass_;
    Device &device_;
    // Of the whole call, where the shard does not communicate; else with its own keys, then with those of each message,
    // round by round. None where the shard is empty.
    std::vector<std::unique_ptr<PreparedCall>> parts_;
    const char *refusal_ = nullptr;
    std::size_t bytes_ = 0, own_bytes_ = 0; // in all; of those what no part uses
    RankMemory memory_;
};

// One end of a message between two shards.
struct ShardTransfer {
    const Message *message;
    std::byte *data;
    std::size_t bytes;
    // Of one that leaves: who writes it, where it is packed, and of which slots it has the gradients, if any.
    ShardCall::Run *sender = nullptr;
    const WireBuffer *buffer = nullptr;
    const ReceiveSlots *slots = nullptr;
};

// What one shard sends and receives in a round.
struct ShardBatch {
    std::vector<ShardTransfer> sends, receives;
};

// The tensors are those of the shard; where it is empty they are not touched.
class ShardCall::Run {
  public:
    // What it is given outlives it.
    Run(ShardCall &call, const CallTensors &tensors, void *workspace, void *stream, void *comm_stream,
        MessageCopier &copier);

    std::size_t rounds() const { return call_.rounds(); }

    // These compute on the call's stream. Work that no other rank waits for can come later: finish_others() ends a
    // round before the next round begins, and finish_own_keys() ends the work on the own keys after all rounds.
    void attend_to_own_keys();
    void attend_to_others(std::size_t round); // in the order of the rounds
    void finish_others(std::size_t round);
    void finish_own_keys();
    void write_outputs();

    // On the stream for messages. What is sent and received is added to the batch, and written later.
    void list_rows(std::size_t round, ShardBatch &batch);
    void list_gradients(std::size_t round, ShardBatch &batch);
    void write(const ShardTransfer &send); // where its data say by now
    void unpack_rows(std::size_t round);
    void add_gradients(std::size_t round);

  private:
    static ShardTransfer transfer_of(const Message &message, const RowPair &pair);
    RowView own_rows(const annulus_tensor &tensor) const;
    RowView packed_rows(void *data, std::int64_t rows, std::int64_t start, std::int64_t stride) const;
    RowView slots_of(const Message &message, std::byte *data) const;
    RowView own_gradients(void *data) const;
    annulus_tensor slots_tensor(const Message &message, std::byte *data) const;
    CallTensors tensors_of(const ReceiveSlots &slots) const;
    void copy(void (MessageCopier::*way)(const RowMove &, void *), const WireBuffer &buffer, annulus_dtype dtype,
              const RowView &first, const RowView &second);

    ShardCall &call_;
    const Problem &problem_;
    const CallTensors &tensors_;
    MessageCopier &copier_;
    void *const workspace_, *const stream_, *const comm_;
    void *of_parts_ = nullptr; // their workspace
    std::size_t next_part_ = 0;
};

} // namespace annulus
