// SPDX-License-Identifier: Apache-2.0
// The order of a call, on a GPU of two streams, the call's and the one for communication:
//
//     send and receive round 0             | own keys
//     send and receive round 1             | keys of round 0
//     return gradients of round 0, round 2 | keys of round 1
//     …
//
// What nobody waits for comes last: of backward the gradients of the own keys, where there is one round, and of each
// round those of queries.
//
// Batches are begun and finished in one order on all ranks, whatever each of them has to do in a round.
#include "ranks/rank_call.hpp"

#include "core/error.hpp"
#include "core/workspace.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

namespace annulus {

RankCall::RankCall(const RankPlans::Shared &shared, annulus_pass pass, const Engine &engine, Device &device,
                   const Limits &limits)
    : shared_(shared), pass_(pass), device_(device) {
    Limits of_shard = limits;
    if (limits.workspace_limit)
        of_shard.workspace_limit = std::max<std::uint64_t>(1, limits.workspace_limit / shared.shards.size());
    std::size_t rounds = 0;
    for (const RankPlans::Shard &shard : shared.shards) {
        ShardCall &call = calls_.emplace_back(shard.plan, pass, engine, device, of_shard);
        if (call.refusal())
            return;
        bytes_ += Workspace::aligned(call.workspace_bytes());
        rounds = std::max(rounds, call.rounds());
    }
    tensors_.resize(calls_.size());
    runs_.resize(calls_.size());
    rows_.resize(rounds);
    gradients_.resize(rounds);
    for (std::size_t i = 0; i < rounds; ++i) {
        std::size_t sends = 0, receives = 0;
        for (const ShardCall &call : calls_)
            if (i < call.rounds()) {
                sends += call.sends_of(i);
                receives += call.receives_of(i);
            }
        for (auto [exchange, sent, received] :
             {std::tuple(&rows_[i], sends, receives), {&gradients_[i], receives, sends}}) {
            exchange->of_shards.sends.reserve(sent);
            exchange->of_shards.receives.reserve(received);
            exchange->travelling.sends.reserve(sent);
            exchange->travelling.receives.reserve(received);
        }
    }
    find_sends();
}

void RankCall::find_sends() {
    const Schedule &all = schedule();
    sends_.resize(static_cast<std::size_t>(std::ranges::max(all.layout().shards().owners)) + 1);
    std::vector<std::size_t> of_exchange(sends_.size());
    std::vector<int> receivers; // of one exchange: most ranks are none, of thousands
    for (std::size_t round = 0; round < rows_.size(); ++round)
        for (const bool are_gradients : {false, true}) {
            if (are_gradients && pass_ == ANNULUS_PASS_FORWARD)
                continue;
            for (const ShardCall &call : calls_)
                if (round < call.rounds())
                    call.for_each_send(round, are_gradients, [&](const Message &message, std::size_t bytes) {
                        if (!all.travels(message))
                            return;
                        const int to = all.owner(are_gradients ? message.from : message.to);
                        if (of_exchange[to] == 0)
                            receivers.push_back(to);
                        of_exchange[to] = add_message(of_exchange[to], bytes);
                    });
            for (const int to : receivers)
                sends_[to] = std::max(sends_[to], std::exchange(of_exchange[to], 0));
            receivers.clear();
        }
}

const char *RankCall::refusal() const {
    return calls_.back().refusal(); // there are none after one that is refused
}

void RankCall::place(std::size_t shard, const CallTensors &tensors, const Problem &rows,
                     std::optional<SequenceTensors> &of_shard) const {
    const RankPlans::Shard &own = shared_.shards[shard];
    Problem placed = rows;
    placed.queries.start = placed.keys.start = own.position_of_row_0;
    of_shard.emplace(tensors, pass_, placed, shared_.sequence, own.plan.local().problem());
}

const char *RankCall::tensor_refusal(const CallTensors &tensors, const Problem &rows) const {
    std::optional<SequenceTensors> of_shard;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
        place(i, tensors, rows, of_shard);
        if (const char *const refusal = calls_[i].tensor_refusal(of_shard->get()))
            return refusal;
    }
    return nullptr;
}

std::int64_t RankCall::row_alignment() const {
    std::int64_t most = 1;
    for (const ShardCall &call : calls_)
        most = std::max(most, call.row_alignment());
    return most;
}

class RankCall::Run {
  public:
    Run(RankCall &call, const CallTensors &tensors, const Problem &rows, void *workspace, void *stream,
        Transport &transport, MessageCopier &copier)
        : call_(call), runs_(call.runs_), transport_(transport), device_(call.device_),
          streams_(call.device_.streams()), stream_(stream), comm_(streams_ ? streams_->comm_stream() : nullptr) {
        auto *memory = static_cast<std::byte *>(workspace);
        for (std::size_t i = 0; i < call.calls_.size(); ++i) {
            ShardCall &shard = call.calls_[i];
            call.place(i, tensors, rows, call.tensors_[i]);
            runs_[i].emplace(shard, call.tensors_[i]->get(), memory, stream, comm_, copier);
            if (memory)
                memory += Workspace::aligned(shard.workspace_bytes());
        }
    }

    // A call that fails half-way leaves its messages behind.
    ~Run() {
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
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;

    void run() {
        const std::size_t rounds = call_.rows_.size();
        is_done_ = rounds == 0; // nobody waits for this rank
        const bool returns = call_.pass_ == ANNULUS_PASS_BACKWARD;
        if (rounds > 0)
            start(0);
        for (std::optional<ShardCall::Run> &run : runs_)
            run->attend_to_own_keys();
        if (rounds > 1) // they are added to before all rounds are over
            finish_own_keys();
        for (std::size_t i = 0; i < rounds; ++i) {
            if (returns && i >= 2)
                finish_return(i - 2);
            finish(i);
            if (returns && i >= 1)
                start_return(i - 1);
            if (i + 1 < rounds)
                start(i + 1);
            for_each_in(i, [&](ShardCall::Run &run) { run.attend_to_others(i); });
            if (i + 1 < rounds)
                finish_others(i);
        }
        if (returns && rounds > 0) {
            if (rounds >= 2)
                finish_return(rounds - 2);
            start_return(rounds - 1);
            finish_others(rounds - 1);
            if (rounds == 1)
                finish_own_keys();
            finish_return(rounds - 1);
        }
        if (rounds > 0)
            order(stream_, comm_);
        is_done_ = true;
        for (std::optional<ShardCall::Run> &run : runs_)
            run->write_outputs();
    }

  private:
    // What `later` is given from now on comes after what `earlier` was given up to now.
    void order(void *later, void *earlier) {
        if (streams_)
            streams_->wait(later, streams_->record(earlier));
    }

    template <class Use> void for_each_in(std::size_t round, const Use &use) {
        for (std::optional<ShardCall::Run> &run : runs_)
            if (round < run->rounds())
                use(*run);
    }

    // list(run, batch) for each run, and on their way.
    template <class List> void begin(std::size_t round, Exchange &exchange, const List &list) {
        auto &[of_shards, travelling] = exchange;
        of_shards.sends.clear();
        of_shards.receives.clear();
        order(comm_, stream_);
        for_each_in(round, [&, &batch = of_shards](ShardCall::Run &run) { list(run, batch); });
        for (std::vector<ShardTransfer> *transfers : {&of_shards.sends, &of_shards.receives})
            sort(*transfers);
        travel(of_shards.sends, travelling.sends);
        travel(of_shards.receives, travelling.receives);
        travelling.write = [this, &sends = of_shards.sends](const std::vector<Transfer> &places) {
            write(sends, places);
        };
        transport_.begin(travelling, device_, comm_);
        copy_at_home(of_shards);
    }

    // Those that travel in their places.
    void write(std::vector<ShardTransfer> &sends, const std::vector<Transfer> &places) {
        auto place = places.begin();
        for (ShardTransfer &send : sends) {
            if (call_.schedule().travels(*send.message))
                send.data = static_cast<std::byte *>((place++)->data);
            send.sender->write(send);
        }
        // What is computed next would leave no multiprocessor to all this, and the others wait for it.
        order(stream_, comm_);
    }

    // In one order at both ends.
    static void sort(std::vector<ShardTransfer> &transfers) {
        std::ranges::sort(transfers, {}, [](const ShardTransfer &transfer) {
            const Message &message = *transfer.message;
            return std::tuple(message.from, message.to, message.keys.start);
        });
    }

    // Of each message between ranks the other end.
    void travel(const std::vector<ShardTransfer> &all, std::vector<Transfer> &travelling) const {
        const Schedule &schedule = call_.schedule();
        travelling.clear();
        for (const ShardTransfer &transfer : all) {
            const int from = schedule.owner(transfer.message->from), to = schedule.owner(transfer.message->to);
            if (schedule.travels(*transfer.message))
                travelling.push_back({from == transport_.rank() ? to : from, transfer.data, transfer.bytes});
        }
    }

    // Messages between two shards of the rank.
    void copy_at_home(const ShardBatch &batch) {
        const auto is_next = [&](const ShardTransfer &transfer) {
            return !call_.schedule().travels(*transfer.message);
        };
        auto receive = batch.receives.begin();
        for (const ShardTransfer &send : batch.sends) {
            if (!is_next(send))
                continue;
            receive = std::find_if(receive, batch.receives.end(), is_next);
            device_.copy(receive->data, send.data, send.bytes, comm_);
            ++receive;
        }
    }

    void finish_others(std::size_t i) {
        for_each_in(i, [&](ShardCall::Run &run) { run.finish_others(i); });
    }

    void finish_own_keys() {
        for (std::optional<ShardCall::Run> &run : runs_)
            run->finish_own_keys();
    }

    void start(std::size_t i) {
        begin(i, call_.rows_[i], [&](ShardCall::Run &run, ShardBatch &batch) { run.list_rows(i, batch); });
    }

    void finish(std::size_t i) {
        transport_.finish(call_.rows_[i].travelling, device_, comm_);
        for_each_in(i, [&](ShardCall::Run &run) { run.unpack_rows(i); });
        order(stream_, comm_);
    }

    void start_return(std::size_t i) {
        begin(i, call_.gradients_[i], [&](ShardCall::Run &run, ShardBatch &batch) { run.list_gradients(i, batch); });
    }

    void finish_return(std::size_t i) {
        transport_.finish(call_.gradients_[i].travelling, device_, comm_);
        if (call_.rows_.size() == 1)
            order(comm_, stream_); // gradients of the own keys have been given to it meanwhile
        for_each_in(i, [&](ShardCall::Run &run) { run.add_gradients(i); });
    }

    RankCall &call_;
    std::deque<std::optional<ShardCall::Run>> &runs_;
    Transport &transport_;
    Device &device_;
    DeviceStreams *const streams_;
    void *const stream_, *const comm_;
    bool is_done_ = false;
};

void RankCall::run(const CallTensors &tensors, const Problem &rows, void *workspace, void *stream, Transport &transport,
                   MessageCopier &copier) {
    Run(*this, tensors, rows, workspace, stream, transport, copier).run();
}

} // namespace annulus
