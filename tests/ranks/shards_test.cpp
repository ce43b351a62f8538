// SPDX-License-Identifier: Apache-2.0
// Ranks find out how many rows each rank has: what they compute, how many all-gathers they make, and what they do if
// they cannot gather.
#include "call/comm.hpp"
#include "core/error.hpp"
#include "transport/local_transport.hpp"

#include "support/compare.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr int ranks = 4;

// A transport that counts all-gathers. A test can forbid all-gathers, as a capture does, and can let messages fail or
// hold on to their memory.
class Watched final : public annulus::Transport {
  public:
    explicit Watched(std::unique_ptr<annulus::Transport> transport) : transport_(std::move(transport)) {}

    int gathers = 0;
    bool may_gather = true, is_broken = false;
    std::function<void()> fail; // in the middle of a call

    int size() const override { return transport_->size(); }
    int rank() const override { return transport_->rank(); }
    void check_device(annulus_device device, int index) const override { transport_->check_device(device, index); }
    void set_timeout(Seconds timeout) override { transport_->set_timeout(timeout); }
    void all_gather(const void *mine, void *all, std::size_t bytes) override {
        ++gathers;
        transport_->all_gather(mine, all, bytes);
    }
    bool can_gather(annulus::Device &, void *) const override { return may_gather; }
    void begin(const annulus::Batch &batch, annulus::Device &device, void *stream) override {
        transport_->begin(batch, device, stream);
    }
    void finish(const annulus::Batch &batch, annulus::Device &device, void *stream) override {
        transport_->finish(batch, device, stream);
        if (fail)
            fail();
        if (is_broken)
            throw annulus::Error(ANNULUS_ERROR_COMM, "broken");
    }
    bool holds_memory() const override { return is_broken; }
    void abort() noexcept override { transport_->abort(); }
    std::optional<annulus::Error> failure() const override { return transport_->failure(); }

  private:
    const std::unique_ptr<annulus::Transport> transport_;
};

class Shards : public testing::Test {
  protected:
    Shards() {
        for (std::unique_ptr<annulus::Transport> &end : annulus::make_local_transports(ranks)) {
            auto watched = std::make_unique<Watched>(std::move(end));
            watched_.push_back(watched.get());
            comms_.emplace_back(new annulus_comm{std::make_shared<annulus::CommEnd>(std::move(watched))});
        }
        RankOptions options;
        options.lengths.resize(ranks);
        options.run.threads = 1;
        for (int rank = 0; rank < ranks; ++rank)
            contexts_.push_back(make_rank_context(problem_, options, rank, comms_[rank].get()));
    }

    // Runs forward and backward on the contexts, and compares with one rank. Returns the number of all-gathers of each
    // rank.
    int gathers_of_calls(const std::vector<std::int64_t> &lengths) {
        SCOPED_TRACE(testing::PrintToString(lengths));
        Problem whole = problem_;
        whole.length = 0;
        std::vector<std::int64_t> starts;
        for (const std::int64_t length : lengths) {
            starts.push_back(whole.length);
            whole.length += length;
        }
        const Inputs inputs = random_inputs(whole, 1);
        const Results wanted = run(whole, inputs, {.threads = 1});
        for_each_rank(ranks, [&](int rank) {
            watched_[rank]->gathers = 0;
            const std::int64_t start = starts[rank], length = lengths[rank];
            RunOptions options;
            options.engine = ANNULUS_ENGINE_AUTO; // no engine serves an empty shard
            options.own_workspace = false;
            const Results part = run_on(contexts_[rank].get(), sizes_of(whole), shard_problem(whole, length),
                                        shard_inputs(whole, inputs, start, length), options);
            expect_near(part, shard_results(whole, wanted, start, length), tolerance_of(whole.dtype));
        });
        for (const Watched *watched : watched_)
            EXPECT_EQ(watched->gathers, watched_[0]->gathers);
        return watched_[0]->gathers;
    }

    annulus_status forward(int rank, std::int64_t length) {
        const Problem shard = shard_problem(problem_, length);
        return Call(shard, random_inputs(shard, 1), host_memory()).forward(contexts_[rank].get());
    }

    const Problem problem_ = {.branches = {{.segment = 7}, {.dilation = 3, .query = ANNULUS_QUERY_EVERY}},
                              .dtype = ANNULUS_FLOAT32};
    std::vector<Watched *> watched_;
    std::vector<Comm> comms_;
    std::vector<Context> contexts_;
};

// A call with the last call's lengths takes one all-gather. A call with new lengths takes a second one.
TEST_F(Shards, AreFoundOnce) {
    EXPECT_EQ(gathers_of_calls({2, 1, 1, 1}), 3); // forward and backward
    EXPECT_EQ(gathers_of_calls({2, 1, 1, 1}), 2);
    EXPECT_EQ(gathers_of_calls({2, 1, 1, 9}), 3); // also for ranks whose own length stays
    EXPECT_EQ(gathers_of_calls({0, 11, 0, 30}), 3);
    EXPECT_EQ(gathers_of_calls({0, 11, 0, 30}), 2);
    EXPECT_EQ(gathers_of_calls({8, 8, 8, 8}), 3);
    EXPECT_EQ(gathers_of_calls({0, 0, 0, 5}), 3);
    EXPECT_EQ(gathers_of_calls({8, 8, 8, 8}), 3);
}

TEST_F(Shards, ThatAreSetNeedNoQuestion) {
    const std::vector<std::int64_t> lengths = {2, 1, 0, 1};
    const annulus_shards shards = view_of(lengths);
    for (const Context &context : contexts_)
        check(annulus_context_set_shards(context.get(), &shards));
    EXPECT_EQ(gathers_of_calls(lengths), 2);
    check(annulus_context_set_shards(contexts_[1].get(), nullptr)); // it knows them from the last call
    EXPECT_EQ(gathers_of_calls(lengths), 2);
    for (const Context &context : contexts_)
        check(annulus_context_set_shards(context.get(), nullptr));
    EXPECT_EQ(gathers_of_calls({1, 1, 1, 2}), 3);
}

// After the shards are taken back, ranks that had several shards have one each, even with the same number of rows.
TEST_F(Shards, OfSeveralARankAreTakenBack) {
    const Ranges zigzag = {{2, 1, 1, 1, 1, 1, 1, 2}, {0, 1, 2, 3, 3, 2, 1, 0}}; // 4, 2, 2, 2 rows
    const annulus_shards shards = zigzag.view(ranks);
    const auto expect_zigzag = [&] {
        for (const Context &context : contexts_)
            check(annulus_context_set_shards(context.get(), &shards));
        for_each_rank(ranks, [&](int rank) { check(forward(rank, rank == 0 ? 4 : 2)); });
    };
    const auto take_back = [&] {
        for (const Context &context : contexts_)
            check(annulus_context_set_shards(context.get(), nullptr));
    };
    expect_zigzag();
    take_back();
    EXPECT_EQ(gathers_of_calls({4, 2, 2, 2}), 3);
    expect_zigzag();
    take_back();
    EXPECT_EQ(gathers_of_calls({4, 2, 3, 1}), 3); // two ranks have other lengths
}

// The pairs of all ranks add up to the pairs of one rank.
TEST_F(Shards, OfSeveralARankAreEstimated) {
    const Ranges zigzag = {{5, 4, 7, 4, 4, 0, 4, 3}, {0, 1, 2, 3, 3, 2, 1, 0}};
    const annulus_shards shards = zigzag.view(ranks);
    Problem whole = problem_;
    whole.length = std::accumulate(zigzag.lengths.begin(), zigzag.lengths.end(), std::int64_t{0});
    const auto pairs_in = [&](annulus_context *context) {
        const annulus_problem sizes = sizes_of(whole);
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        check(annulus_estimate_problem(context, &sizes, ANNULUS_PASS_FORWARD, ANNULUS_ALL_BRANCHES, &estimate));
        return estimate.pairs;
    };
    double pairs = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        annulus_context *const context = contexts_[rank].get();
        check(annulus_context_set_shards(context, &shards));
        pairs += pairs_in(context);
    }
    const Context one = make_context(make_config(whole, {.threads = 1}).get(), 1, host_memory());
    EXPECT_EQ(pairs, pairs_in(one.get()));
}

// A context that gets the communicator anew does not know the shards, though the other ranks do.
TEST_F(Shards, OneRankDoesNotKnowAnyMore) {
    EXPECT_EQ(gathers_of_calls({2, 1, 1, 1}), 3);
    check(annulus_context_set_comm(contexts_[2].get(), comms_[2].get()));
    EXPECT_EQ(gathers_of_calls({2, 1, 1, 1}), 3);
    EXPECT_EQ(gathers_of_calls({2, 1, 1, 1}), 2);
}

// annulus_workspace_size() gathers nothing. It is for the last call's shards if they have the same total length, else
// for even shards.
TEST_F(Shards, OfTheCallBeforeAreThoseOfSizes) {
    const std::vector<std::int64_t> uneven = {0, 11, 0, 30}, even = {11, 10, 10, 10}, longer = {11, 11, 11, 10};
    const auto expect_sizes_of = [&](const std::vector<std::int64_t> &lengths) {
        const annulus_shards shards = view_of(lengths);
        Problem whole = problem_;
        whole.length = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        const annulus_problem sizes = sizes_of(whole);
        for (int rank = 0; rank < ranks; ++rank) {
            annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
            check(
                annulus_estimate_rank(contexts_[rank].get(), &sizes, ANNULUS_PASS_BACKWARD, &shards, rank, &estimate));
            std::uint64_t bytes = 0;
            check(annulus_workspace_size(contexts_[rank].get(), &sizes, ANNULUS_PASS_BACKWARD, &bytes));
            EXPECT_EQ(bytes, estimate.workspace_bytes) << rank;
        }
    };
    expect_sizes_of(even);
    gathers_of_calls(uneven);
    expect_sizes_of(uneven);
    expect_sizes_of(longer);
}

// A rank may have too little memory for the shards that it expects. That is no error if the ranks have shorter shards.
TEST_F(Shards, WhatWasExpectedAndCannotBeDone) {
    EXPECT_EQ(gathers_of_calls({5, 100, 5, 5}), 3);
    const annulus_problem sizes = sizes_of(shard_problem(problem_, 20));
    const std::vector<std::int64_t> lengths(ranks, 5);
    const annulus_shards shards = view_of(lengths);
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    check(annulus_estimate_rank(contexts_[0].get(), &sizes, ANNULUS_PASS_BACKWARD, &shards, 0, &estimate));
    std::vector<unsigned char> memory(estimate.workspace_bytes);
    check(annulus_context_set_workspace(contexts_[0].get(), memory.data(), memory.size()));
    EXPECT_EQ(gathers_of_calls(lengths), 3);
    EXPECT_EQ(gathers_of_calls(lengths), 2);
}

// If the ranks cannot gather, as in a capture, they use the shards that they know.
TEST_F(Shards, MustBeKnownWhereNobodyCanAsk) {
    const auto let_gather = [&](bool may_gather) {
        for (Watched *watched : watched_)
            watched->may_gather = may_gather;
    };
    const std::vector<std::int64_t> lengths = {3, 0, 1, 1};
    const auto expect_refusal = [&](std::int64_t length) {
        EXPECT_EQ(forward(0, length), ANNULUS_ERROR_UNSUPPORTED);
        const std::string message = annulus_last_error();
        for (const char *words : {"captured", "once before", "annulus_context_set_shards()"})
            EXPECT_NE(message.find(words), std::string::npos) << message;
    };
    let_gather(false);
    expect_refusal(3);
    let_gather(true);
    EXPECT_EQ(gathers_of_calls(lengths), 3);
    let_gather(false);
    EXPECT_EQ(gathers_of_calls(lengths), 0);
    expect_refusal(4);
    EXPECT_EQ(gathers_of_calls(lengths), 0);
    // Other lengths work if they are set.
    const std::vector<std::int64_t> others = {4, 4, 0, 1};
    const annulus_shards shards = view_of(others);
    for (const Context &context : contexts_)
        check(annulus_context_set_shards(context.get(), &shards));
    EXPECT_EQ(gathers_of_calls(others), 0);
}

// After a failed call, memory that the transport may still write to is not given back.
TEST(Memory, OfAFailedCallStaysWhereItIsHeld) {
    struct Memory {
        std::vector<unsigned char> bytes = std::vector<unsigned char>(1 << 20);
        int given = 0;
    };
    for (const bool is_broken : {false, true}) {
        std::vector<std::unique_ptr<annulus::Transport>> ends = annulus::make_local_transports(2);
        for_each_rank(2, [&](int rank) {
            auto watched = std::make_unique<Watched>(std::move(ends[rank]));
            watched->is_broken = is_broken;
            const Comm comm(new annulus_comm{std::make_shared<annulus::CommEnd>(std::move(watched))});
            RankOptions options;
            options.lengths = {32, 32};
            const Problem whole;
            const Context context = make_rank_context(whole, options, rank, comm.get());
            Memory memory;
            annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
            allocator.user = &memory;
            allocator.allocate = [](void *user, std::size_t bytes, std::size_t alignment, void *) {
                Memory &of = *static_cast<Memory *>(user);
                ++of.given;
                void *data = of.bytes.data();
                std::size_t space = of.bytes.size();
                return std::align(alignment, bytes, data, space);
            };
            allocator.release = [](void *user, void *, std::size_t, std::size_t, void *) {
                --static_cast<Memory *>(user)->given;
            };
            check(annulus_context_set_allocator(context.get(), &allocator));
            const Problem shard = shard_problem(whole, 32);
            EXPECT_EQ(Call(shard, random_inputs(shard, 1), host_memory()).forward(context.get()),
                      is_broken ? ANNULUS_ERROR_COMM : ANNULUS_OK);
            EXPECT_EQ(memory.given, is_broken);
        });
    }
}

// If anything fails after outputs may have been written, the status does not say that nothing was written.
TEST(Failures, InTheMiddleOfACallSayThatOutputsMayBeWritten) {
    using annulus::Error;
    struct Failing {
        std::function<void()> fail;
        annulus_status status;
        const char *library;
        std::int64_t code;
    };
    const Failing all[] = {
        {[] { throw std::bad_alloc(); }, ANNULUS_ERROR_COMM, "", 0},
        {[] { throw Error(ANNULUS_ERROR_MEMORY, "no memory"); }, ANNULUS_ERROR_COMM, "", 0},
        {[] { throw Error(ANNULUS_ERROR_UNSUPPORTED, "cannot"); }, ANNULUS_ERROR_COMM, "", 0},
        {[] { throw Error(ANNULUS_ERROR_COMM, "lost"); }, ANNULUS_ERROR_COMM, "", 0},
        {[] { throw Error(ANNULUS_ERROR_COMM_LIBRARY, "it failed").from("mpi", 7); }, ANNULUS_ERROR_COMM_LIBRARY, "mpi",
         7},
        {[] { throw Error(ANNULUS_ERROR_DEVICE, "it failed").from("cuda", -2); }, ANNULUS_ERROR_DEVICE, "cuda", -2},
    };
    for (const Failing &failing : all) {
        std::vector<std::unique_ptr<annulus::Transport>> ends = annulus::make_local_transports(2);
        for_each_rank(2, [&](int rank) {
            auto watched = std::make_unique<Watched>(std::move(ends[rank]));
            watched->fail = failing.fail;
            const Comm comm(new annulus_comm{std::make_shared<annulus::CommEnd>(std::move(watched))});
            RankOptions options;
            options.lengths = {32, 32};
            const Context context = make_rank_context({}, options, rank, comm.get());
            const Problem shard = shard_problem({}, 32);
            EXPECT_EQ(Call(shard, random_inputs(shard, 1), host_memory()).forward(context.get()), failing.status);
            EXPECT_STREQ(annulus_last_error_library(), failing.library);
            EXPECT_EQ(annulus_last_error_code(), failing.code);
            // The next failed call replaces them.
            EXPECT_EQ(annulus_config_create(nullptr), ANNULUS_ERROR_ARGUMENT);
            EXPECT_STREQ(annulus_last_error_library(), "");
            EXPECT_EQ(annulus_last_error_code(), 0);
        });
    }
}

} // namespace
} // namespace annulus::test
