// SPDX-License-Identifier: Apache-2.0
// The order of a run. A GPU has two streams for it: the stream for messages (left) and the call's (right).
//
//     send and receive round 0             | sequences that the rank has alone, own keys of shared sequences
//     send and receive round 1             | keys of round 0
//     return gradients of round 0, round 2 | keys of round 1
//     …
//
// If there is one round, and the engine's executables run beside others, backward computes the gradients of received
// keys on the stream for messages. It takes the multiprocessors that the launches of the call's stream leave idle, at
// their ends above all. These launches follow one another without a gap:
//
//     send and receive; dK, dV of received | LSE, delta; dQ for own keys; dQ for received keys
//     keys; return them                    | dK, dV of own keys
//
// Work that no other rank waits for comes last. In backward this is dQ for the last received keys of the last round. If
// there is only one round, it is also dK and dV of the rank's own keys.
//
// Each rank begins and finishes its batches in one order: rows 0, rows 1, gradients 0, rows 2, gradients 1, … A rank
// with fewer rounds leaves out the later batches. So two ranks order the messages between them alike. Two ranks never
// wait for one another in different batches.
#include "ranks/shared_sequences.hpp"

#include "core/error.hpp"
#include "core/workspace.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

namespace annulus {

SharedSequences::SharedSequences(const RankPlan &plans, annulus_pass pass, const Engine &engine, Device &device,
                                 const Limits &limits)
    : plans_(plans), pass_(pass), device_(device), sent_bytes_(static_cast<std::size_t>(plans.ranks())) {
    Workspace ledger;
    for (std::size_t sequence = 0; sequence < plans.shared().size(); ++sequence)
        for (const RankPlan::Shard &shard : plans.shared()[sequence].shards)
            ledger.skip(shards_.emplace_back(sequence, shard, pass, engine, device, limits).executable.memory_bytes());
    memory_bytes_ = ledger.used();
    make_rounds();
    find_sent_bytes();
}

void SharedSequences::make_rounds() {
    for (Shard &shard : shards_)
        for (std::size_t round = 0; round < shard.executable.rounds(); ++round) {
            const std::size_t number = shard.executable.number(round);
            if (number >= shard_rounds_.size())
                shard_rounds_.resize(number + 1);
            shard_rounds_[number].push_back({&shard, round});
        }
    rows_.resize(shard_rounds_.size());
    gradients_.resize(shard_rounds_.size());
    for (std::size_t i = 0; i < shard_rounds_.size(); ++i) {
        std::size_t sends = 0, receives = 0;
        for (const auto &[shard, round] : shard_rounds_[i]) {
            sends += shard->executable.send_count(round);
            receives += shard->executable.receive_count(round);
        }
        for (auto [exchange, sent, received] :
             {std::tuple(&rows_[i], sends, receives), {&gradients_[i], receives, sends}}) {
            exchange->batch.sends.reserve(sent);
            exchange->batch.receives.reserve(received);
            exchange->travel.sends.reserve(sent);
            exchange->travel.receives.reserve(received);
        }
    }
}

void SharedSequences::find_sent_bytes() {
    std::map<int, std::size_t> round_bytes; // a round reaches a few of perhaps thousands of ranks
    for (const std::vector<ShardRound> &shard_rounds : shard_rounds_)
        for (const bool are_gradients : {false, true}) {
            if (are_gradients && pass_ == ANNULUS_PASS_FORWARD)
                continue;
            round_bytes.clear();
            for (const ShardRound &shard_round : shard_rounds) {
                const ShardExecutable &shard = shard_round.shard->executable;
                shard.for_each_send(shard_round.round, are_gradients, [&](int peer, std::size_t bytes) {
                    if (peer != shard.rank())
                        round_bytes[peer] = add_message(round_bytes[peer], bytes);
                });
            }
            for (const auto &[peer, bytes] : round_bytes)
                sent_bytes_[peer] = std::max(sent_bytes_[peer], bytes);
        }
}

const char *SharedSequences::prepare(const Limits &limits, std::size_t alone_bytes) {
    for (Shard &shard : shards_)
        if (const char *const refusal = shard.executable.prepare(limits))
            return refusal;
    find_apart_bytes(limits, alone_bytes);
    return nullptr;
}

void SharedSequences::find_apart_bytes(const Limits &limits, std::size_t alone_bytes) {
    if (!device_.streams() || rows_.size() != 1)
        return;
    Workspace apart;
    for (const Shard &shard : shards_) {
        if (!shard.executable.runs_beside_others())
            return;
        apart.skip(shard.executable.apart_bytes());
    }
    Workspace all = apart;
    all.skip(alone_bytes);
    if (apart.used() > max_apart_bytes || (limits.workspace_limit != 0 && all.used() > limits.workspace_limit))
        return;
    runs_beside_ = true;
    apart_bytes_ = apart.used();
}

void SharedSequences::view_shard(const Shard &shard, const CallTensors &tensors,
                                 std::optional<SequenceTensors> &shard_tensors) const {
    Problem placed = plans_.rows();
    placed.queries.start = placed.keys.start = shard.planned.position_of_row_0;
    shard_tensors.emplace(tensors, pass_, placed, plans_.shared()[shard.sequence].sequence,
                          shard.planned.plan.local().problem());
}

const char *SharedSequences::tensor_refusal(const CallTensors &tensors) const {
    std::optional<SequenceTensors> shard_tensors;
    for (const Shard &shard : shards_) {
        view_shard(shard, tensors, shard_tensors);
        if (const char *const refusal = shard.executable.tensor_refusal(shard_tensors->get()))
            return refusal;
    }
    return nullptr;
}

std::int64_t SharedSequences::row_alignment() const {
    std::int64_t most = 1;
    for (const Shard &shard : shards_)
        most = std::max(most, shard.executable.row_alignment());
    return most;
}

std::size_t SharedSequences::workspace_bytes() const {
    std::size_t most = 0;
    if (runs_beside_)
        return most;
    for (const Shard &shard : shards_)
        most = std::max(most, shard.executable.workspace_bytes());
    return most;
}

// One run of all rounds, in the order that the head of this file gives.
class SharedSequences::Rounds {
  public:
    Rounds(SharedSequences &sequences, const CallTensors &tensors, void *memory, void *apart, void *workspace,
           void *stream, Transport &transport, MessageCopier &copier)
        : sequences_(sequences), transport_(transport), device_(sequences.device_),
          streams_(sequences.device_.streams()), stream_(stream), comm_(streams_ ? streams_->comm_stream() : nullptr) {
        const bool is_apart = sequences.runs_beside_;
        auto *next = static_cast<std::byte *>(memory), *next_apart = static_cast<std::byte *>(apart);
        for (Shard &shard : sequences.shards_) {
            sequences.view_shard(shard, tensors, shard.tensors);
            shard.run.emplace(shard.executable, shard.sequence, shard.tensors->get(), next,
                              RunPlace{is_apart ? next_apart : workspace, is_apart, stream, comm_}, copier);
            if (next)
                next += shard.executable.memory_bytes();
            if (next_apart)
                next_apart += shard.executable.apart_bytes();
        }
    }

    // A run that fails half-way breaks the transport, which then gives up the messages that were begun.
    ~Rounds() {
        if (is_done_)
            return;
        transport_.abort();
        try {
            transport_.finish({}, device_, comm_);
        } catch (const Error &) {
        }
        try {
            order(stream_, comm_);
        } catch (const Error &) { // the error that ended the run is the one to report
        }
    }
    Rounds(const Rounds &) = delete;
    Rounds &operator=(const Rounds &) = delete;

    // `alone` and its arguments are as in SharedSequences::run().
    void run(Executable *alone, const CallTensors &tensors, void *workspace) {
        const std::size_t rounds = sequences_.rows_.size();
        is_done_ = rounds == 0; // then no other rank waits for this one
        const bool returns = sequences_.pass_ == ANNULUS_PASS_BACKWARD;
        if (rounds > 0)
            start(0);
        if (sequences_.runs_beside_)
            begin_executables(returns);
        if (alone)
            alone->run(tensors, {}, workspace, stream_);
        for_each_run([](ShardRun &run) { run.attend_to_own_keys(); });
        if (sequences_.runs_beside_)
            run_only_round(returns);
        else
            run_rounds(returns);
        is_done_ = true;
        for_each_run([](ShardRun &run) { run.write_outputs(); });
    }

  private:
    // Calls ShardRun's begin_own_keys() and begin_received_keys(). Backward begins with LSE and delta, which take time
    // in which the stream for messages can set sums to 0. Then that stream waits for LSE and delta.
    void begin_executables(bool returns) {
        for_each_run([](ShardRun &run) { run.begin_own_keys(); });
        for_each_in(
            0, [&](ShardRun &run, std::size_t round) { run.begin_received_keys(round, returns ? comm_ : stream_); });
        if (returns)
            order(comm_, stream_);
    }

    // Runs the only round of executables that run beside one another, after the own keys.
    void run_only_round(bool returns) {
        finish(0);
        if (!returns)
            return attend_to_received_keys(0, stream_);
        attend_to_received_keys(0, comm_);
        bool follows = false;
        for (const auto &[shard, round] : sequences_.shard_rounds_[0]) {
            shard->run->run_rest_of_received_keys(round, follows);
            follows |= shard->executable.receive_count(round) > 0; // then run_rest() has launched
        }
        begin(0, sequences_.gradients_[0], comm_, list_gradients);
        run_rest_of_own_keys(follows && !waits_for_writing_);
        finish_return(0);
        order(stream_, comm_);
    }

    // Runs all rounds, after the own keys.
    void run_rounds(bool returns) {
        const std::size_t rounds = sequences_.rows_.size();
        if (rounds > 1) // returned gradients are added to its results before the last round
            run_rest_of_own_keys(false);
        for (std::size_t i = 0; i < rounds; ++i) {
            if (returns && i >= 2)
                finish_return(i - 2);
            finish(i);
            if (returns && i >= 1)
                start_return(i - 1);
            if (i + 1 < rounds)
                start(i + 1);
            attend_to_received_keys(i, stream_);
            if (i + 1 < rounds)
                run_rest_of_received_keys();
        }
        if (returns && rounds > 0) {
            if (rounds >= 2)
                finish_return(rounds - 2);
            start_return(rounds - 1);
            run_rest_of_received_keys();
            if (rounds == 1)
                run_rest_of_own_keys(false);
            finish_return(rounds - 1);
            order(stream_, comm_);
        }
    }

    // Lets the further work of stream `later` wait for the work that stream `earlier` has been given.
    void order(void *later, void *earlier) {
        if (streams_)
            streams_->wait(later, streams_->record(earlier));
    }

    template <class Use> void for_each_run(const Use &use) {
        for (Shard &shard : sequences_.shards_)
            use(*shard.run);
    }

    // Calls use(run, round) for each shard with messages in round i; `round` is its index among the shard's own.
    template <class Use> void for_each_in(std::size_t i, const Use &use) {
        for (const auto &[shard, round] : sequences_.shard_rounds_[i])
            use(*shard->run, round);
    }

    // Begins an exchange of round i with the messages that list(run, round, batch) adds to the batch for each shard.
    // They are results of the work that stream `writer` has been given.
    template <class List> void begin(std::size_t i, Exchange &exchange, void *writer, const List &list) {
        auto &[batch, travel] = exchange;
        batch.sends.clear();
        batch.receives.clear();
        if (writer != comm_)
            order(comm_, writer);
        waits_for_writing_ = false;
        for_each_in(i, [&, &listed = batch](ShardRun &run, std::size_t round) { list(run, round, listed); });
        for (std::vector<ShardTransfer> *transfers : {&batch.sends, &batch.receives})
            sort(*transfers);
        select_travelling(batch.sends, travel.sends);
        select_travelling(batch.receives, travel.receives);
        travel.write = [this, &sends = batch.sends](const std::vector<Transfer> &places) { write(sends, places); };
        transport_.begin(travel, device_, comm_);
        copy_within_rank(batch);
    }

    // Writes all messages. Messages to other ranks go to `places`, which the transport chose.
    void write(std::vector<ShardTransfer> &sends, const std::vector<Transfer> &places) {
        auto place = places.begin();
        bool has_kernels = !transport_.copies_between_devices();
        for (ShardTransfer &send : sends) {
            if (travels(send))
                send.data = static_cast<std::byte *>((place++)->data);
            has_kernels |= send.sender->write(send);
        }
        // The kernels that follow on the call's stream occupy every multiprocessor, and other ranks wait for the
        // messages. Only messages that other devices copy from where they lie need no kernel here.
        waits_for_writing_ = !sends.empty() && has_kernels;
        if (waits_for_writing_)
            order(stream_, comm_);
    }

    // Sorts messages into an order that is the same at both ends.
    static void sort(std::vector<ShardTransfer> &transfers) {
        std::ranges::sort(transfers, {}, [](const ShardTransfer &transfer) {
            const Message &message = *transfer.message;
            return std::tuple(transfer.sequence, message.from, message.to, message.keys.start);
        });
    }

    bool travels(const ShardTransfer &transfer) const { return transfer.peer != transport_.rank(); }

    // Writes the messages between two ranks to `travelling`, each with the rank at its other end.
    void select_travelling(const std::vector<ShardTransfer> &all, std::vector<Transfer> &travelling) const {
        travelling.clear();
        for (const ShardTransfer &transfer : all)
            if (travels(transfer))
                travelling.push_back({transfer.peer, transfer.data, transfer.bytes});
    }

    // Copies the messages between two shards of this rank.
    void copy_within_rank(const ShardBatch &batch) {
        auto receive = batch.receives.begin();
        for (const ShardTransfer &send : batch.sends) {
            if (travels(send))
                continue;
            while (travels(*receive))
                ++receive;
            device_.copy(receive->data, send.data, send.bytes, comm_);
            ++receive;
        }
    }

    // If the shards share a workspace, only the last one that has received keys may leave work for later.
    void attend_to_received_keys(std::size_t i, void *stream) {
        unfinished_.reset();
        bool follows = false;
        for (const ShardRound &shard_round : sequences_.shard_rounds_[i]) {
            if (shard_round.shard->executable.receive_count(shard_round.round) == 0)
                continue;
            if (!sequences_.runs_beside_)
                run_rest_of_received_keys();
            shard_round.shard->run->attend_to_received_keys(shard_round.round, stream, follows);
            unfinished_ = shard_round;
            follows = sequences_.runs_beside_;
        }
    }

    void run_rest_of_received_keys() {
        if (unfinished_)
            unfinished_->shard->run->run_rest_of_received_keys(unfinished_->round, false);
    }

    void run_rest_of_own_keys(bool follows) {
        for_each_run([follows](ShardRun &run) { run.run_rest_of_own_keys(follows); });
    }

    void start(std::size_t i) {
        begin(i, sequences_.rows_[i], stream_,
              [](ShardRun &run, std::size_t round, ShardBatch &batch) { run.list_rows(round, batch); });
    }

    void finish(std::size_t i) {
        transport_.finish(sequences_.rows_[i].travel, device_, comm_);
        for_each_in(i, [](ShardRun &run, std::size_t round) { run.unpack_rows(round); });
        order(stream_, comm_);
    }

    static void list_gradients(ShardRun &run, std::size_t round, ShardBatch &batch) {
        run.list_gradients(round, batch);
    }

    void start_return(std::size_t i) { begin(i, sequences_.gradients_[i], stream_, list_gradients); }

    void finish_return(std::size_t i) {
        transport_.finish(sequences_.gradients_[i].travel, device_, comm_);
        if (sequences_.rows_.size() == 1)
            order(comm_, stream_); // the gradients of the own keys were computed since start_return()
        for_each_in(i, [](ShardRun &run, std::size_t round) { run.add_gradients(round); });
    }

    SharedSequences &sequences_;
    Transport &transport_;
    Device &device_;
    DeviceStreams *const streams_;
    void *const stream_, *const comm_;
    std::optional<ShardRound> unfinished_; // the last shard that attended to received keys
    bool waits_for_writing_ = false; // the call's stream waits until the messages that were begun last are written
    bool is_done_ = false;
};

void SharedSequences::run(const CallTensors &tensors, Executable *alone, void *memory, void *apart, void *workspace,
                          void *stream, Transport &transport, MessageCopier &copier) {
    Rounds(*this, tensors, memory, apart, workspace, stream, transport, copier).run(alone, tensors, workspace);
}

} // namespace annulus
