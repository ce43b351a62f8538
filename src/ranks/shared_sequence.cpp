// SPDX-License-Identifier: Apache-2.0
// The order of a run. A GPU has two streams for it: the stream for messages (left) and the call's (right).
//
//     send and receive round 0             | own keys
//     send and receive round 1             | keys of round 0
//     return gradients of round 0, round 2 | keys of round 1
//     …
//
// Work that no other rank waits for comes last. In backward that is the gradients of queries of each round and, if
// there is one round, the gradients of the rank's own keys.
//
// All ranks begin and finish their batches in the same order, also a rank that has no message in a round.
#include "ranks/shared_sequence.hpp"

#include "core/error.hpp"
#include "core/workspace.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

namespace annulus {

SharedSequence::SharedSequence(const RankPlan::Shared &shared, annulus_pass pass, const Engine &engine, Device &device,
                               const Limits &limits)
    : shared_(shared), pass_(pass), device_(device) {
    Limits shard_limits = limits;
    if (limits.workspace_limit)
        shard_limits.workspace_limit = std::max<std::uint64_t>(1, limits.workspace_limit / shared.shards.size());
    bool communicates = false;
    for (const RankPlan::Shard &shard : shared.shards) {
        ShardExecutable &executable = shards_.emplace_back(shard.plan, pass, engine, device, shard_limits);
        if (executable.refusal())
            return;
        bytes_ += Workspace::aligned(executable.workspace_bytes());
        communicates = communicates || executable.rounds() > 0;
    }
    tensors_.resize(shards_.size());
    runs_.resize(shards_.size());
    if (!communicates)
        return;
    const std::size_t rounds = schedule().round_count();
    shard_rounds_.resize(rounds);
    rows_.resize(rounds);
    gradients_.resize(rounds);
    for (std::size_t i = 0; i < shards_.size(); ++i)
        for (std::size_t round = 0; round < shards_[i].rounds(); ++round)
            shard_rounds_[shards_[i].number(round)].push_back({i, round});
    for (std::size_t i = 0; i < rounds; ++i) {
        std::size_t sends = 0, receives = 0;
        for (const auto &[shard, round] : shard_rounds_[i]) {
            sends += shards_[shard].send_count(round);
            receives += shards_[shard].receive_count(round);
        }
        for (auto [exchange, sent, received] :
             {std::tuple(&rows_[i], sends, receives), {&gradients_[i], receives, sends}}) {
            exchange->batch.sends.reserve(sent);
            exchange->batch.receives.reserve(received);
            exchange->travel.sends.reserve(sent);
            exchange->travel.receives.reserve(received);
        }
    }
    find_sent_bytes();
}

void SharedSequence::find_sent_bytes() {
    const Schedule &all = schedule();
    std::map<int, std::size_t> exchange_bytes; // one exchange reaches a few of perhaps thousands of ranks
    for (const std::vector<ShardRound> &shard_rounds : shard_rounds_)
        for (const bool are_gradients : {false, true}) {
            if (are_gradients && pass_ == ANNULUS_PASS_FORWARD)
                continue;
            exchange_bytes.clear();
            for (const auto &[shard, round] : shard_rounds)
                shards_[shard].for_each_send(round, are_gradients, [&](const Message &message, std::size_t bytes) {
                    if (!all.travels(message))
                        return;
                    std::size_t &sum = exchange_bytes[all.owner(are_gradients ? message.from : message.to)];
                    sum = add_message(sum, bytes);
                });
            for (const auto &[to, bytes] : exchange_bytes)
                sent_bytes_[to] = std::max(sent_bytes_[to], bytes);
        }
}

const char *SharedSequence::refusal() const {
    return shards_.back().refusal(); // the constructor stops at the first refusal
}

void SharedSequence::take_shard(std::size_t shard, const CallTensors &tensors, const Problem &rows,
                                std::optional<SequenceTensors> &shard_tensors) const {
    const RankPlan::Shard &own = shared_.shards[shard];
    Problem placed = rows;
    placed.queries.start = placed.keys.start = own.position_of_row_0;
    shard_tensors.emplace(tensors, pass_, placed, shared_.sequence, own.plan.local().problem());
}

const char *SharedSequence::tensor_refusal(const CallTensors &tensors, const Problem &rows) const {
    std::optional<SequenceTensors> shard_tensors;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
        take_shard(i, tensors, rows, shard_tensors);
        if (const char *const refusal = shards_[i].tensor_refusal(shard_tensors->get()))
            return refusal;
    }
    return nullptr;
}

std::int64_t SharedSequence::row_alignment() const {
    std::int64_t most = 1;
    for (const ShardExecutable &shard : shards_)
        most = std::max(most, shard.row_alignment());
    return most;
}

// One run.
class SharedSequence::Rounds {
  public:
    Rounds(SharedSequence &sequence, const CallTensors &tensors, const Problem &rows, void *workspace, void *stream,
           Transport &transport, MessageCopier &copier)
        : sequence_(sequence), runs_(sequence.runs_), transport_(transport), device_(sequence.device_),
          streams_(sequence.device_.streams()), stream_(stream), comm_(streams_ ? streams_->comm_stream() : nullptr) {
        auto *memory = static_cast<std::byte *>(workspace);
        for (std::size_t i = 0; i < sequence.shards_.size(); ++i) {
            ShardExecutable &shard = sequence.shards_[i];
            sequence.take_shard(i, tensors, rows, sequence.tensors_[i]);
            runs_[i].emplace(shard, sequence.tensors_[i]->get(), memory, stream, comm_, copier);
            if (memory)
                memory += Workspace::aligned(shard.workspace_bytes());
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

    void run() {
        const std::size_t rounds = sequence_.rows_.size();
        is_done_ = rounds == 0; // then no other rank waits for this one
        const bool returns = sequence_.pass_ == ANNULUS_PASS_BACKWARD;
        if (rounds > 0)
            start(0);
        for (std::optional<ShardRun> &run : runs_)
            run->attend_to_own_keys();
        if (rounds > 1) // the first returned gradients are added to them before the last round
            run_rest_of_own_keys();
        for (std::size_t i = 0; i < rounds; ++i) {
            if (returns && i >= 2)
                finish_return(i - 2);
            finish(i);
            if (returns && i >= 1)
                start_return(i - 1);
            if (i + 1 < rounds)
                start(i + 1);
            for_each_in(i, [](ShardRun &run, std::size_t round) { run.attend_to_received_keys(round); });
            if (i + 1 < rounds)
                run_rest_of_received_keys(i);
        }
        if (returns && rounds > 0) {
            if (rounds >= 2)
                finish_return(rounds - 2);
            start_return(rounds - 1);
            run_rest_of_received_keys(rounds - 1);
            if (rounds == 1)
                run_rest_of_own_keys();
            finish_return(rounds - 1);
        }
        if (rounds > 0)
            order(stream_, comm_);
        is_done_ = true;
        for (std::optional<ShardRun> &run : runs_)
            run->write_outputs();
    }

  private:
    // Lets the further work of stream `later` wait for the work that stream `earlier` has been given.
    void order(void *later, void *earlier) {
        if (streams_)
            streams_->wait(later, streams_->record(earlier));
    }

    // Calls use(run, round) for each shard with messages in round i; `round` is its index among the shard's own.
    template <class Use> void for_each_in(std::size_t i, const Use &use) {
        for (const auto &[shard, round] : sequence_.shard_rounds_[i])
            use(*runs_[shard], round);
    }

    // Begins an exchange of round i with the messages that list(run, round, batch) adds to the batch for each shard.
    template <class List> void begin(std::size_t i, Exchange &exchange, const List &list) {
        auto &[batch, travel] = exchange;
        batch.sends.clear();
        batch.receives.clear();
        order(comm_, stream_);
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
        for (ShardTransfer &send : sends) {
            if (sequence_.schedule().travels(*send.message))
                send.data = static_cast<std::byte *>((place++)->data);
            send.sender->write(send);
        }
        // The kernels that follow on the call's stream occupy every multiprocessor, and other ranks wait for the
        // messages.
        order(stream_, comm_);
    }

    // Sorts messages into an order that is the same at both ends.
    static void sort(std::vector<ShardTransfer> &transfers) {
        std::ranges::sort(transfers, {}, [](const ShardTransfer &transfer) {
            const Message &message = *transfer.message;
            return std::tuple(message.from, message.to, message.keys.start);
        });
    }

    // Writes the messages between two ranks to `travelling`, each with the rank at its other end.
    void select_travelling(const std::vector<ShardTransfer> &all, std::vector<Transfer> &travelling) const {
        const Schedule &schedule = sequence_.schedule();
        travelling.clear();
        for (const ShardTransfer &transfer : all) {
            const int from = schedule.owner(transfer.message->from), to = schedule.owner(transfer.message->to);
            if (schedule.travels(*transfer.message))
                travelling.push_back({from == transport_.rank() ? to : from, transfer.data, transfer.bytes});
        }
    }

    // Copies the messages between two shards of this rank.
    void copy_within_rank(const ShardBatch &batch) {
        const auto stays = [&](const ShardTransfer &transfer) {
            return !sequence_.schedule().travels(*transfer.message);
        };
        auto receive = batch.receives.begin();
        for (const ShardTransfer &send : batch.sends) {
            if (!stays(send))
                continue;
            receive = std::find_if(receive, batch.receives.end(), stays);
            device_.copy(receive->data, send.data, send.bytes, comm_);
            ++receive;
        }
    }

    void run_rest_of_received_keys(std::size_t i) {
        for_each_in(i, [](ShardRun &run, std::size_t round) { run.run_rest_of_received_keys(round); });
    }

    void run_rest_of_own_keys() {
        for (std::optional<ShardRun> &run : runs_)
            run->run_rest_of_own_keys();
    }

    void start(std::size_t i) {
        begin(i, sequence_.rows_[i],
              [](ShardRun &run, std::size_t round, ShardBatch &batch) { run.list_rows(round, batch); });
    }

    void finish(std::size_t i) {
        transport_.finish(sequence_.rows_[i].travel, device_, comm_);
        for_each_in(i, [](ShardRun &run, std::size_t round) { run.unpack_rows(round); });
        order(stream_, comm_);
    }

    void start_return(std::size_t i) {
        begin(i, sequence_.gradients_[i],
              [](ShardRun &run, std::size_t round, ShardBatch &batch) { run.list_gradients(round, batch); });
    }

    void finish_return(std::size_t i) {
        transport_.finish(sequence_.gradients_[i].travel, device_, comm_);
        if (sequence_.rows_.size() == 1)
            order(comm_, stream_); // the gradients of the own keys were computed since start_return()
        for_each_in(i, [](ShardRun &run, std::size_t round) { run.add_gradients(round); });
    }

    SharedSequence &sequence_;
    std::deque<std::optional<ShardRun>> &runs_;
    Transport &transport_;
    Device &device_;
    DeviceStreams *const streams_;
    void *const stream_, *const comm_;
    bool is_done_ = false;
};

void SharedSequence::run(const CallTensors &tensors, const Problem &rows, void *workspace, void *stream,
                         Transport &transport, MessageCopier &copier) {
    Rounds(*this, tensors, rows, workspace, stream, transport, copier).run();
}

} // namespace annulus
