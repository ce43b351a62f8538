// SPDX-License-Identifier: Apache-2.0
// How often ranks that share several sequences exchange messages, how many messages that are, and how much memory it
// takes.
#include "cpu/blocked/engine.hpp"
#include "cpu/cpu_device.hpp"
#include "cpu/message_copier.hpp"
#include "ranks/distributed_executable.hpp"
#include "transport/local_transport.hpp"

#include "support/plan.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace annulus::test {
namespace {

// Counts what goes through another transport.
class CountingTransport final : public Transport {
  public:
    std::size_t exchanges = 0, sent = 0, received = 0;

    explicit CountingTransport(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

    int size() const override { return transport_->size(); }
    int rank() const override { return transport_->rank(); }
    void check_device(annulus_device device, int index) const override { transport_->check_device(device, index); }
    void set_timeout(Seconds timeout) override { transport_->set_timeout(timeout); }
    void all_gather(const void *mine, void *all, std::size_t bytes) override {
        transport_->all_gather(mine, all, bytes);
    }
    bool can_gather(Device &device, void *stream) const override { return transport_->can_gather(device, stream); }
    void begin(const Batch &batch, Device &device, void *stream) override {
        exchanges += !batch.empty();
        sent += batch.sends.size();
        received += batch.receives.size();
        transport_->begin(batch, device, stream);
    }
    void finish(const Batch &batch, Device &device, void *stream) override {
        transport_->finish(batch, device, stream);
    }
    void abort() noexcept override { transport_->abort(); }
    std::optional<Error> failure() const override { return transport_->failure(); }

  private:
    std::unique_ptr<Transport> transport_;
};

std::vector<Sequence> documents_of(const std::vector<std::int64_t> &lengths) {
    std::vector<Sequence> sequences;
    std::int64_t start = 0;
    for (const std::int64_t length : lengths) {
        sequences.push_back({0, 1, {start, length}});
        start += length;
    }
    return sequences;
}

// Documents of these lengths under dense attention, on ranks with these shards.
struct Job {
    std::vector<std::int64_t> documents, shards;
    bool causal = false;

    int ranks() const { return static_cast<int>(shards.size()); }

    RankPlan plan(int rank, annulus_exchange exchange) const {
        const Problem problem = in_documents(
            {.heads = 2, .dim = 8, .branches = {{}}, .causal = causal, .dtype = ANNULUS_FLOAT32}, documents);
        return {pattern_of(problem),
                {plan_problem_of(problem), documents_of(documents)},
                make_shards(shards),
                rank,
                exchange,
                call_planning_steps};
    }

    // How many ranks with rows of a document come before, and after, the rank in question.
    struct Others {
        std::size_t before = 0, after = 0;
    };
    // Returns them for each document that the rank shares.
    std::vector<Others> shared(int rank) const {
        std::vector<Others> all;
        std::int64_t start = 0;
        for (const std::int64_t length : documents) {
            Others others;
            bool is_here = false;
            std::int64_t shard_start = 0;
            for (int i = 0; i < ranks(); ++i) {
                const std::int64_t shard_end = shard_start + shards[i];
                if (std::max(start, shard_start) < std::min(start + length, shard_end)) {
                    is_here |= i == rank;
                    others.before += i < rank;
                    others.after += i > rank;
                }
                shard_start = shard_end;
            }
            if (is_here && others.before + others.after > 0)
                all.push_back(others);
            start += length;
        }
        return all;
    }
};

annulus_tensor tensor_of(std::vector<float> &values, std::int64_t rows) {
    values.assign(static_cast<std::size_t>(rows * 2 * 8 + 1), 0); // not null without rows
    return {values.data(), ANNULUS_FLOAT32, 4, {1, rows, 2, 8}, {rows * 2 * 8, 2 * 8, 8, 1}};
}

// Runs a pass over zeros. Returns the transports, which have counted.
std::vector<CountingTransport> run(const Job &job, annulus_pass pass, annulus_exchange exchange) {
    std::vector<CountingTransport> transports;
    for (std::unique_ptr<Transport> &transport : make_local_transports(job.ranks()))
        transports.emplace_back(std::move(transport));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < job.ranks(); ++rank)
        threads.emplace_back([&, rank] {
            const std::int64_t rows = job.shards[rank];
            std::vector<std::vector<float>> memory(9);
            std::vector<float> lse(static_cast<std::size_t>(2 * rows + 1));
            const annulus_tensor statistic{lse.data(), ANNULUS_FLOAT32, 3, {1, 2, rows}, {2 * rows, rows, 1}};
            CallTensors tensors{tensor_of(memory[0], rows), tensor_of(memory[1], rows), tensor_of(memory[2], rows),
                                tensor_of(memory[3], rows), &statistic};
            tensors.d_out = tensor_of(memory[4], rows);
            tensors.d_q = tensor_of(memory[5], rows);
            tensors.d_k = tensor_of(memory[6], rows);
            tensors.d_v = tensor_of(memory[7], rows);
            const RankPlan plan = job.plan(rank, exchange);
            CpuDevice device;
            const std::unique_ptr<MessageCopier> copier = make_cpu_message_copier();
            const Preparation prepared =
                prepare_distributed(plan, pass, cpu_engine, device, {}, {&transports[rank], copier.get()});
            std::vector<std::byte> workspace(prepared.executable->workspace_bytes() + Workspace::alignment);
            void *aligned = workspace.data();
            std::size_t space = workspace.size();
            std::align(Workspace::alignment, space - Workspace::alignment, aligned, space);
            prepared.executable->run(tensors, {}, aligned, nullptr);
        });
    threads.clear();
    return transports;
}

// A rank shares up to two documents here, of two or more ranks. Each document is a segment over all of its ranks.
TEST(Exchange, IsOneForAllSharedDocuments) {
    for (const bool causal : {false, true})
        for (const Job &job :
             {Job{{13, 30, 7, 0, 55, 1, 20}, {21, 40, 30, 35}, causal}, Job{{40, 41, 42}, {41, 41, 41}, causal},
              Job{{5, 100, 15}, {30, 0, 30, 30, 30}, causal}, Job{{20, 20}, {20, 20}, causal}})
            for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER})
                for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
                    const std::vector<CountingTransport> transports = run(job, pass, exchange);
                    for (int rank = 0; rank < job.ranks(); ++rank) {
                        SCOPED_TRACE(testing::Message()
                                     << testing::PrintToString(job.documents) << " on rank " << rank << " of shards "
                                     << testing::PrintToString(job.shards) << ", causal " << causal << ", exchange "
                                     << exchange << ", pass " << pass);
                        std::size_t rounds = 0, sent = 0, received = 0;
                        std::int64_t computed = 0; // messages at once from one side count as one
                        for (const auto &[before, after] : job.shared(rank)) {
                            const std::size_t hops = causal ? std::max(before, after) : before + after;
                            rounds = std::max(rounds, exchange == ANNULUS_EXCHANGE_RING ? hops : 1);
                            sent += after + (causal ? 0 : before);
                            received += before + (causal ? 0 : after);
                            for (const std::size_t side : {before, causal ? 0 : after})
                                computed += static_cast<std::int64_t>(
                                    exchange == ANNULUS_EXCHANGE_RING ? side : std::min<std::size_t>(side, 1));
                        }
                        const bool returns = pass == ANNULUS_PASS_BACKWARD;
                        EXPECT_EQ(transports[rank].exchanges, rounds * (returns ? 2 : 1));
                        EXPECT_EQ(transports[rank].sent, sent + (returns ? received : 0));
                        EXPECT_EQ(transports[rank].received, received + (returns ? sent : 0));
                        EXPECT_EQ(job.plan(rank, exchange).received_messages(), computed);
                    }
                }
}

// The engine's workspace for 8 threads is larger than that for one, by as much for two documents as for one.
TEST(Exchange, SharesTheWorkspaceOfTheEngine) {
    const auto bytes = [](const Job &job, annulus_pass pass, int threads) {
        const RankPlan plan = job.plan(1, ANNULUS_EXCHANGE_GATHER);
        CpuDevice device;
        return prepare_distributed(plan, pass, cpu_engine, device, {.threads = threads}, {})
            .executable->workspace_bytes();
    };
    const Job one{{600}, {300, 300}}, two{{600, 600}, {300, 600, 300}};
    for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
        EXPECT_GT(bytes(one, pass, 8), bytes(one, pass, 1));
        EXPECT_EQ(bytes(two, pass, 8) - bytes(two, pass, 1), bytes(one, pass, 8) - bytes(one, pass, 1));
    }
}

} // namespace
} // namespace annulus::test
