// SPDX-License-Identifier: Apache-2.0
// Contexts and communicators in a forked child. Objects that were in use in the parent, or that only the parent can
// use, refuse calls at once and can be destroyed. All other objects work.
#include "support/compare.hpp"
#include "support/ranks.hpp"
#include "support/run.hpp"

#include "faults/child.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>

namespace annulus::test {
namespace {

// Throws unless the call was refused because of a fork.
void expect_refused(const char *name, annulus_status status) {
    if (status != ANNULUS_ERROR_ARGUMENT || std::string(annulus_last_error()).find("forked") == std::string::npos)
        throw std::runtime_error(std::string(name) + ": " + annulus_status_name(status) + ": " + annulus_last_error());
}

bool identical(const Results &a, const Results &b) {
    return a.out == b.out && a.lse == b.lse && a.d_q == b.d_q && a.d_k == b.d_k && a.d_v == b.d_v;
}

// Holds a call in the middle, at the point where it asks for its workspace.
class Gate {
  public:
    annulus_allocator allocator() { return {sizeof(annulus_allocator), &Gate::allocate, &Gate::release, this}; }
    void wait_until_reached() { reached_.wait(); }
    void open() { open_.count_down(); }

  private:
    static void *allocate(void *user, std::size_t bytes, std::size_t alignment, void *) {
        Gate &gate = *static_cast<Gate *>(user);
        gate.reached_.count_down();
        gate.open_.wait();
        return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    }
    static void release(void *, void *memory, std::size_t, std::size_t, void *) { std::free(memory); }

    std::latch reached_{1}, open_{1};
};

class Fork : public testing::Test {
  protected:
    const Problem problem_ = {.length = 571,
                              .heads = 4,
                              .dim = 24,
                              .branches = {{}, {.dilation = 3, .query = ANNULUS_QUERY_RESIDUE}},
                              .dtype = ANNULUS_FLOAT32};
    const Inputs inputs_ = random_inputs(problem_, 1);
    const Results wanted_ = run(problem_, inputs_, {.threads = 1});
    const Config config_ = make_config(problem_, ANNULUS_ENGINE_CPU);

    Context new_context() const { return make_context(config_.get(), 3); }

    void expect_works(annulus_context *context) const {
        if (!identical(run_on(context, sizes_of(problem_), problem_, inputs_, {.own_workspace = false}), wanted_))
            throw std::runtime_error("wrong results");
    }

    // Every function that uses a context.
    void expect_all_refused(annulus_context *context) const {
        const Call call(problem_, inputs_, host_memory());
        const annulus_problem sizes = sizes_of(problem_);
        std::uint64_t bytes = 0;
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        const annulus_shards shards = {sizeof shards, 2, 0, nullptr, nullptr};
        expect_refused("forward", call.forward(context));
        expect_refused("backward", call.backward(context));
        expect_refused("workspace_size", annulus_workspace_size(context, &sizes, ANNULUS_PASS_FORWARD, &bytes));
        expect_refused("estimate_problem", annulus_estimate_problem(context, &sizes, ANNULUS_PASS_FORWARD,
                                                                    ANNULUS_ALL_BRANCHES, &estimate));
        expect_refused("estimate_rank",
                       annulus_estimate_rank(context, &sizes, ANNULUS_PASS_FORWARD, &shards, 0, &estimate));
        annulus_config *config = nullptr;
        annulus_engine engine = ANNULUS_ENGINE_AUTO;
        annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
        expect_refused("copy_config", annulus_context_copy_config(&config, context));
        expect_refused("last_engine", annulus_context_last_engine(context, &engine));
        expect_refused("last_traffic", annulus_context_last_traffic(context, &traffic));
        expect_refused("set_config", annulus_context_set_config(context, config_.get()));
        expect_refused("set_stream", annulus_context_set_stream(context, nullptr));
        expect_refused("set_allocator", annulus_context_set_allocator(context, nullptr));
        expect_refused("set_workspace", annulus_context_set_workspace(context, nullptr, 0));
        expect_refused("set_threads", annulus_context_set_threads(context, 1));
        expect_refused("set_comm", annulus_context_set_comm(context, nullptr));
        expect_refused("set_shards", annulus_context_set_shards(context, nullptr));
    }
};

TEST_F(Fork, ContextInUse) {
    Gate gate;
    const annulus_allocator allocator = gate.allocator();
    const Context busy = new_context(), idle = new_context();
    expect_works(idle.get());
    check(annulus_context_set_allocator(busy.get(), &allocator));
    std::jthread user([&] { expect_works(busy.get()); });
    gate.wait_until_reached();
    const std::string said = in_child([&] {
        expect_all_refused(busy.get());
        annulus_context_destroy(busy.get());
        expect_works(idle.get());
        annulus_context_destroy(idle.get());
        expect_works(new_context().get());
        return "";
    });
    EXPECT_EQ(said, "");
    gate.open();
    user.join();
    expect_works(busy.get());
}

TEST_F(Fork, AtAnyMoment) {
    const Context busy = new_context(), idle = new_context();
    std::atomic<bool> stop = false;
    std::jthread user([&] {
        while (!stop)
            expect_works(busy.get());
    });
    for (int i = 0; i < 25; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(997 * (i % 7)));
        const std::string said = in_child([&] {
            expect_works(idle.get());
            Call call(problem_, inputs_, host_memory());
            const annulus_status status = call.forward(busy.get());
            if (status != ANNULUS_OK)
                expect_refused("forward", status);
            else if (call.results(ANNULUS_PASS_FORWARD).out != wanted_.out)
                throw std::runtime_error("wrong results");
            annulus_context_destroy(busy.get());
            return "";
        });
        EXPECT_EQ(said, "");
    }
    stop = true;
}

TEST_F(Fork, Communicators) {
    const std::vector<Comm> comms = make_local_comms(2);
    RankOptions options;
    options.lengths = {200, 371};
    const auto expect_rank_works = [&](int rank) { run_rank(problem_, inputs_, options, rank, comms[rank].get()); };
    std::jthread first([&] { expect_rank_works(0); }); // waits for the other rank
    const Context context = make_rank_context(problem_, options, 1, comms[1].get());
    const std::string said = in_child([&] {
        const Call call(shard_problem(problem_, 371), shard_inputs(problem_, inputs_, 200, 371), host_memory());
        expect_refused("forward", call.forward(context.get()));
        expect_refused("set_comm", annulus_context_set_comm(context.get(), comms[0].get()));
        for (const Comm &comm : comms) {
            std::int32_t number = 0;
            expect_refused("size", annulus_comm_size(comm.get(), &number));
            expect_refused("rank", annulus_comm_rank(comm.get(), &number));
            expect_refused("set_timeout", annulus_comm_set_timeout(comm.get(), 1));
            expect_refused("abort", annulus_comm_abort(comm.get()));
            annulus_comm_destroy(comm.get());
        }
        check(annulus_context_set_comm(context.get(), nullptr));
        expect_works(context.get());
        options.run.own_workspace = false;
        run_ranks(problem_, inputs_, options); // with new communicators
        return "";
    });
    EXPECT_EQ(said, "");
    expect_rank_works(1);
}

// Ranks compute together, each with threads of its own, and fork children at any moment. The children use objects that
// they make themselves, exit or execute another program. The parent's calls must not be affected.
TEST_F(Fork, RanksAtAnyMoment) {
    constexpr int ranks = 3, calls = 50;
    const std::vector<Comm> comms = make_local_comms(ranks);
    RankOptions options;
    options.lengths = even_lengths(problem_.length, ranks);
    const Results wanted = run_ranks(problem_, inputs_, options);
    options.run.own_workspace = false;
    std::atomic<bool> done = false;
    std::exception_ptr failure;
    std::jthread parent([&] {
        try {
            for (int i = 0; i < calls; ++i)
                if (!identical(run_ranks(problem_, inputs_, options, comms), wanted))
                    throw std::runtime_error("wrong results");
        } catch (...) {
            failure = std::current_exception();
        }
        done = true;
    });
    for (int i = 0; !done; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(997 * (i % 7)));
        if (i % 3 == 0)
            EXPECT_EQ(in_child_that_exits([] { execl("/bin/sh", "sh", "-c", "exit 0", nullptr); }), "");
        else if (i % 3 == 1)
            EXPECT_EQ(in_child_that_exits([&] {
                          for (const Comm &comm : comms)
                              annulus_comm_destroy(comm.get());
                          expect_works(new_context().get());
                      }),
                      "");
        else
            EXPECT_EQ(in_child([&] {
                          for (const Comm &comm : comms)
                              expect_refused("abort", annulus_comm_abort(comm.get()));
                          return identical(run_ranks(problem_, inputs_, options), wanted) ? "" : "wrong results";
                      }),
                      "");
    }
    parent.join();
    if (failure)
        std::rethrow_exception(failure);
}

TEST_F(Fork, ContextsOfCudaDevices) {
    std::int32_t devices = 0;
    check(annulus_device_count(ANNULUS_DEVICE_CUDA, &devices));
    if (devices == 0)
        GTEST_SKIP() << "no CUDA device";
    annulus_context *context = nullptr;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, 0));
    check(annulus_context_set_config(context, make_config(problem_, ANNULUS_ENGINE_AUTO).get()));
    const std::string said = in_child([&] {
        expect_all_refused(context);
        annulus_context_destroy(context);
        return "";
    });
    EXPECT_EQ(said, "");
    annulus_context_destroy(context);
}

} // namespace
} // namespace annulus::test
