// SPDX-License-Identifier: Apache-2.0
// What a rank does for one shard of a sequence that several ranks share. The shard's queries attend to its own keys
// while keys of other shards travel. Then they attend to received keys, round by round, in one running softmax.
// Backward sends the gradients of received keys back to the keys' owners. An owner adds them in the order of the hops,
// so bits repeat.
#pragma once

#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"
#include "ranks/shard_memory.hpp"
#include "ranks/shard_plan.hpp"
#include "transport/transport.hpp"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace annulus {

// Prepared once. One thread uses it at a time.
class ShardExecutable {
  public:
    // `plan` and `device` outlive it. The workspace limit does not matter yet.
    ShardExecutable(const ShardPlan &plan, annulus_pass pass, const Engine &engine, Device &device,
                    const Limits &limits);

    // Prepares the engine's executables. Returns why the engine cannot serve the shard; null if it can. Called once.
    const char *prepare(const Limits &limits);
    // Returns why the engine cannot take the shard's tensors; null if it can. Every engine can take rows that arrive
    // from other shards.
    const char *tensor_refusal(const CallTensors &tensors) const;
    std::int64_t row_alignment() const { return executables_.empty() ? 1 : executables_.front()->row_alignment(); }

    // Returns the bytes that the shard occupies during a whole call: partial results and messages.
    std::size_t memory_bytes() const { return memory_bytes_; }
    // Returns the bytes of the engine's workspace, which other executables may use in between.
    std::size_t workspace_bytes() const { return workspace_bytes_; }
    // True if all executables run beside others. Then each may have a workspace of its own, with apart_bytes() for all
    // of them, and ShardRun's begin_own_keys() and begin_received_keys() may be called.
    bool runs_beside_others() const;
    std::size_t apart_bytes() const;
    // Returns the number of rounds in which the shard has messages. The functions below name a round by its index among
    // them.
    std::size_t rounds() const { return memory_.rounds.size(); }
    // Returns the number of a round among all rounds of the sequence.
    std::size_t number(std::size_t round) const { return memory_.rounds[round].number; }
    std::size_t send_count(std::size_t round) const { return memory_.rounds[round].leaving.size(); }
    std::size_t receive_count(std::size_t round) const { return memory_.rounds[round].received.size(); }

    // Calls use(peer, bytes) for each message that the shard sends in a round: of rows, or of gradients of received
    // rows. `peer` is as ShardTransfer::peer.
    template <class Use> void for_each_send(std::size_t round, bool are_gradients, const Use &use) const {
        if (are_gradients)
            for (const ReceivedMessage &received : memory_.rounds[round].received)
                use(peer_of(*received.message), returning_gradients(round, received).total_bytes());
        else
            for (const WireBuffer &buffer : memory_.rounds[round].leaving)
                use(peer_of(*buffer.message), buffer.wire.total_bytes());
    }
    // Returns the rank that has the shard itself.
    int rank() const { return plan_.schedule().owner(plan_.schedule().shard()); }

  private:
    friend class ShardRun;

    bool has_partial_results() const { return plan_.has_partial_results(pass_); }
    // Returns the rank that has the other shard of a message.
    int peer_of(const Message &message) const;

    // Returns where the gradients of a received message's rows lie when they are sent back.
    const RowPair &returning_gradients(std::size_t round, const ReceivedMessage &received) const;
    const char *prepare(const Plan &plan, KeyScope scope, const Limits &limits);

    const ShardPlan &plan_;
    const annulus_pass pass_;
    const Engine &engine_;
    Device &device_;
    const Sums sums_;
    // - None if the shard is empty.
    // - One over all keys if the pass has no partial results.
    // - Else one over its own keys, then one for each ReceivedKeys of each round, in the order of the rounds.
    std::vector<std::unique_ptr<Executable>> executables_;
    std::vector<std::size_t> apart_offsets_; // of the executables' own workspaces, and the end of the last one
    std::size_t memory_bytes_ = 0, workspace_bytes_ = 0;
    ShardMemory memory_; // empty if the shard exchanges nothing
};

class ShardRun;

// One end of a message between two shards.
struct ShardTransfer {
    const Message *message;
    std::size_t sequence; // as ShardRun's
    int peer;             // the rank that has the other shard, which may be this rank
    std::byte *data;
    std::size_t bytes;
    // Set in sends only.
    ShardRun *sender = nullptr;
    const WireBuffer *buffer = nullptr;  // where it is packed; null if it leaves as it lies
    const ReceiveSlots *slots = nullptr; // whose gradients it carries; null if it carries rows
};

// What one shard sends and receives in a round.
struct ShardBatch {
    std::vector<ShardTransfer> sends, receives;
};

// Where the executables of a call run. The streams are null on a CPU.
struct RunPlace {
    void *workspace; // of the engine: of apart_bytes() if `is_apart`, else of workspace_bytes()
    bool is_apart;   // each executable has a workspace of its own, and begins
    void *stream, *comm_stream;
};

// One run of a shard's executables, step by step. shared_sequences.cpp has the order of the steps.
class ShardRun {
  public:
    // All arguments outlive it, `memory` with the shard's memory_bytes(). `sequence` numbers the shard's sequence, in
    // an order that is the same on all ranks. `tensors` have the shard's rows; they are not touched if it has none.
    ShardRun(ShardExecutable &shard, std::size_t sequence, const CallTensors &tensors, void *memory,
             const RunPlace &place, MessageCopier &copier);

    // The following two functions call Executable::begin(), if the executables have workspaces of their own.
    void begin_own_keys();
    void begin_received_keys(std::size_t round, void *stream); // of the round that comes next

    // The following functions compute on the call's stream, or on `stream`. Work that no other rank waits for comes
    // later: run_rest_of_received_keys() does that of the last received keys of a round, before anything else uses the
    // workspace. If the executables have workspaces of their own, it does that of all received keys of the round.
    // run_rest_of_own_keys() does that of the own keys, at any time.
    //
    // With `follows`, the first launch may begin while the launch before it still runs (Executable::let_begin_early()).
    void attend_to_own_keys();
    void attend_to_received_keys(std::size_t round, void *stream, bool follows); // called in the order of the rounds
    void run_rest_of_received_keys(std::size_t round, bool follows);
    void run_rest_of_own_keys(bool follows);
    void write_outputs();

    // The following functions work on the stream for messages. The first two add a round's messages to the batch.
    void list_rows(std::size_t round, ShardBatch &batch);
    void list_gradients(std::size_t round, ShardBatch &batch);
    // Writes the message to send.data. Returns false if it lies there already.
    bool write(const ShardTransfer &send);
    void unpack_rows(std::size_t round);
    void add_gradients(std::size_t round);

  private:
    std::size_t rounds() const { return shard_.rounds(); }
    ShardTransfer make_transfer(const Message &message, const RowPair &pair) const;
    RowView own_rows(const annulus_tensor &tensor) const;
    RowView packed_rows(void *data, std::int64_t rows, std::int64_t start, std::int64_t stride) const;
    RowView slot_rows(const ReceivedKeys &keys, std::byte *data) const;
    RowView own_gradients(void *partial, const annulus_tensor &tensor) const;
    annulus_tensor slots_tensor(const ReceivedKeys &keys, std::byte *data) const;
    CallTensors received_tensors(const ReceiveSlots &slots) const;
    void *workspace_of(std::size_t executable) const;
    void copy(void (MessageCopier::*way)(const RowMove &, void *), const WireBuffer &buffer, annulus_dtype dtype,
              const RowView &first, const RowView &second);

    ShardExecutable &shard_;
    const Problem &problem_;
    const CallTensors &tensors_;
    MessageCopier &copier_;
    const std::size_t sequence_;
    std::byte *const workspace_;
    const bool is_apart_;
    void *const stream_, *const comm_;
    // Indices of executables: of the first received keys that were attended to last, and of those that come next.
    std::size_t first_of_round_ = 1, next_executable_ = 1;
};

} // namespace annulus
