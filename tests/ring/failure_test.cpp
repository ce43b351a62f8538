// SPDX-License-Identifier: Apache-2.0
// What ranks do where one of them does otherwise: through the public API, over the local transport, as threads. Where
// nobody is lost the same communicator serves the next call.
#include "support/compare.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace annulus::test {
namespace {

using namespace std::chrono_literals;

constexpr int ranks = 3;
constexpr annulus_pass passes[] = {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD};

// Every shard needs rows of every other.
Problem small_problem() {
    return {.batch = 2,
            .length = 24,
            .heads = 4,
            .kv_heads = 2,
            .branches = {{},
                         {.segment = 12,
                          .dilation = 3,
                          .phase = ANNULUS_PHASE_FIXED,
                          .residue = 1,
                          .query = ANNULUS_QUERY_EVERY,
                          .order = ANNULUS_ORDER_HILBERT,
                          .width = 4,
                          .first_head = 1,
                          .head_count = 2}},
            .dtype = ANNULUS_FLOAT32};
}

// Pointers as a call takes them.
struct Pointers {
    const annulus_tensor *q, *k, *v, *out, *lse, *d_out, *d_lse, *d_q, *d_k, *d_v;
    const annulus_window *window = nullptr;
};

// What a rank brings to a call, right or wrong.
struct Part {
    Problem problem = small_problem();
    std::int64_t rows = small_problem().length / ranks;
    std::vector<std::int64_t> lengths = {}; // empty: none are set
    annulus_exchange exchange = ANNULUS_EXCHANGE_AUTO;
    annulus_pass pass = ANNULUS_PASS_FORWARD;
    double timeout = 60;
    bool has_config = true;
    std::function<void(annulus_config *)> configure = [](annulus_config *) {};
    std::function<void(annulus_context *)> prepare = [](annulus_context *) {};
    std::function<void(Call::Arguments &, Pointers &)> spoil = [](Call::Arguments &, Pointers &) {};
};

struct Outcome {
    annulus_status status = ANNULUS_OK;
    std::string message; // of a failure
    bool untouched = true;
};

bool holds(const std::string &message, const std::string &words) {
    return message.find(words) != std::string::npos;
}

// The elements of a dense tensor.
std::span<unsigned char> elements_of(const annulus_tensor &tensor) {
    std::size_t bytes = bytes_of(tensor.dtype);
    for (std::int32_t d = 0; d < tensor.rank; ++d)
        bytes *= static_cast<std::size_t>(tensor.shape[d]);
    return {static_cast<unsigned char *>(tensor.data), bytes};
}

// Whether they are as their memory was made.
bool is_untouched(const annulus_tensor &tensor) {
    return std::ranges::all_of(elements_of(tensor), [](unsigned char byte) { return byte == 0xFF; });
}

// A rank's context and tensors, ready for its call.
class Caller {
  public:
    Caller(const Part &part, annulus_comm *comm)
        : part_(part), call_(shard_problem(part.problem, part.rows),
                             random_inputs(shard_problem(part.problem, part.rows), 1), host_place()),
          given_(call_.arguments) {
        annulus_context *context = nullptr;
        check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
        context_.reset(context);
        check(annulus_context_set_threads(context, 1));
        if (part.has_config) {
            const Config config = make_config(part.problem, ANNULUS_ENGINE_AUTO);
            check(annulus_config_set_exchange(config.get(), part.exchange));
            part.configure(config.get());
            check(annulus_context_set_config(context, config.get()));
        }
        check(annulus_comm_set_timeout(comm, part.timeout));
        check(annulus_context_set_comm(context, comm));
        if (!part.lengths.empty())
            check(annulus_context_set_shards(context, part.lengths.data(), static_cast<int>(part.lengths.size())));
        part.prepare(context);
        Call::Arguments &a = given_;
        if (!is_forward()) // inputs then
            for (const annulus_tensor *input : {&a.out, &a.lse})
                std::ranges::fill(elements_of(*input), 0);
        pointers_ = {&a.q, &a.k, &a.v, &a.out, &a.lse, &a.d_out, &a.d_lse, &a.d_q, &a.d_k, &a.d_v};
        part.spoil(a, pointers_);
    }

    Outcome call() {
        const Pointers &p = pointers_;
        Outcome outcome;
        outcome.status = is_forward() ? annulus_forward(context_.get(), p.q, p.k, p.v, p.out, p.lse, p.window)
                                      : annulus_backward(context_.get(), p.q, p.k, p.v, p.out, p.lse, p.d_out, p.d_lse,
                                                         p.d_q, p.d_k, p.d_v, p.window);
        if (outcome.status != ANNULUS_OK)
            outcome.message = annulus_last_error();
        const Call::Arguments &a = call_.arguments;
        const std::vector<const annulus_tensor *> outputs =
            is_forward() ? std::vector{&a.out, &a.lse} : std::vector{&a.d_q, &a.d_k, &a.d_v};
        for (const annulus_tensor *output : outputs)
            outcome.untouched = outcome.untouched && is_untouched(*output);
        return outcome;
    }

  private:
    bool is_forward() const { return part_.pass == ANNULUS_PASS_FORWARD; }

    const Part part_;
    const Call call_;
    Call::Arguments given_;
    Pointers pointers_{};
    Context context_;
};

std::vector<Outcome> call_all(const std::vector<Part> &parts, const std::vector<Comm> &comms) {
    std::vector<Outcome> outcomes(parts.size());
    for_each_rank(static_cast<int>(parts.size()),
                  [&](int rank) { outcomes[rank] = Caller(parts[rank], comms[rank].get()).call(); });
    return outcomes;
}

// Fails unless the communicator serves a correct forward and backward call.
void expect_service(const std::vector<Comm> &comms) {
    const Problem problem = small_problem();
    static const Inputs inputs = random_inputs(problem, 3);
    static const Results wanted = run(problem, inputs, {.threads = 1});
    RankOptions options;
    options.lengths = even_lengths(problem.length, ranks);
    options.run.threads = 1;
    expect_near(run_ranks(problem, inputs, options, comms), wanted, tolerance_of(problem.dtype));
}

// One thing that a rank does otherwise, and what the message must name.
struct Otherwise {
    std::string name;
    std::string words;
    std::function<void(Part &, int rank)> change;
    annulus_status status = ANNULUS_ERROR_ARGUMENT;

    friend void PrintTo(const Otherwise &otherwise, std::ostream *out) { *out << otherwise.name; }
};

std::string name_of(const testing::TestParamInfo<Otherwise> &info) {
    return info.param.name;
}

// ---- Ranks that disagree.

Otherwise of_problem(const std::string &name, const std::string &words, const std::function<void(Problem &)> &change) {
    return {name, words, [change](Part &part, int) { change(part.problem); }};
}

Otherwise of_branch(const std::string &name, const std::function<void(BranchSpec &)> &change) {
    return of_problem(name, "branch 1 ", [change](Problem &problem) { change(problem.branches[1]); });
}

std::vector<Otherwise> disagreements() {
    return {
        of_problem("dtype", "dtype", [](Problem &p) { p.dtype = ANNULUS_FLOAT64; }),
        of_problem("dtype_of_the_same_size", "dtype", [](Problem &p) { p.dtype = ANNULUS_BFLOAT16; }),
        of_problem("heads", "query heads", [](Problem &p) { p.heads = 8; }),
        of_problem("kv_heads", "key/value heads", [](Problem &p) { p.kv_heads = 4; }),
        of_problem("head_dim", "head dimension", [](Problem &p) { p.dim = 16; }),
        of_problem("batch", "batch", [](Problem &p) { p.batch = 1; }),
        of_problem("causal", "causal", [](Problem &p) { p.causal = true; }),
        of_problem("padding", "padding", [](Problem &p) { p.zero_keys = true; }),
        of_problem("scale", "scale", [](Problem &p) { p.scale = 0.5; }),
        of_problem("more_branches", "branches", [](Problem &p) { p.branches.emplace_back(); }),
        of_problem("fewer_branches", "branches", [](Problem &p) { p.branches.pop_back(); }),
        of_branch("segment_length", [](BranchSpec &b) { b.segment = 8; }),
        of_branch("dilation", [](BranchSpec &b) { b.dilation = 4; }),
        of_branch("phase_rule", [](BranchSpec &b) { b.phase = ANNULUS_PHASE_INTERLEAVE, b.residue = 0; }),
        of_branch("residue", [](BranchSpec &b) { b.residue = 2; }),
        of_branch("query_rule", [](BranchSpec &b) { b.query = ANNULUS_QUERY_DILATED; }),
        of_branch("order", [](BranchSpec &b) { b.order = ANNULUS_ORDER_LINEAR, b.width = 0; }),
        of_branch("grid_width", [](BranchSpec &b) { b.width = 3; }),
        of_branch("first_head", [](BranchSpec &b) { b.first_head = 2; }),
        of_branch("head_count", [](BranchSpec &b) { b.head_count = 3; }),
        {"exchange", "exchange", [](Part &part, int) { part.exchange = ANNULUS_EXCHANGE_RING; }},
        {"pass", "annulus_forward() and rank 0 annulus_backward()",
         [](Part &part, int) {
             part.pass = part.pass == ANNULUS_PASS_FORWARD ? ANNULUS_PASS_BACKWARD : ANNULUS_PASS_FORWARD;
         }},
    };
}

class Disagreement : public testing::TestWithParam<Otherwise> {};

TEST_P(Disagreement, IsAnErrorOnAllRanks) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes)
        for (int odd = 0; odd < ranks; ++odd) {
            SCOPED_TRACE(testing::Message() << "pass " << pass << ", rank " << odd << " differs");
            std::vector<Part> parts(ranks);
            for (Part &part : parts)
                part.pass = pass;
            GetParam().change(parts[odd], odd);
            std::string words = GetParam().words;
            if (GetParam().name == "pass" && parts[0].pass == ANNULUS_PASS_FORWARD)
                words = "annulus_backward() and rank 0 annulus_forward()";
            for (const Outcome &outcome : call_all(parts, comms)) {
                EXPECT_EQ(outcome.status, ANNULUS_ERROR_ARGUMENT) << outcome.message;
                EXPECT_TRUE(holds(outcome.message, words)) << outcome.message;
                EXPECT_TRUE(holds(outcome.message, "rank " + std::to_string(odd ? odd : 1)) ||
                            holds(outcome.message, "ranks " + std::to_string(odd ? odd : 1)))
                    << outcome.message;
                EXPECT_TRUE(outcome.untouched);
            }
            expect_service(comms);
        }
}

INSTANTIATE_TEST_SUITE_P(Fields, Disagreement, testing::ValuesIn(disagreements()), name_of);

// What one rank sets must be what all have; its own rows are. The others set that, or nothing.
TEST(Agreement, ChecksTheShardsThatWereSet) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes)
        for (int odd = 0; odd < ranks; ++odd)
            for (const bool all : {false, true}) {
                SCOPED_TRACE(testing::Message() << "pass " << pass << ", rank " << odd << ", all set " << all);
                std::vector<Part> parts(ranks);
                for (Part &part : parts) {
                    part.pass = pass;
                    if (all)
                        part.lengths = {8, 8, 8};
                }
                parts[odd].lengths = {8, 8, 8};
                parts[odd].lengths[(odd + 1) % ranks] -= 1;
                parts[odd].lengths[(odd + 2) % ranks] += 1;
                for (const Outcome &outcome : call_all(parts, comms)) {
                    EXPECT_EQ(outcome.status, ANNULUS_ERROR_ARGUMENT) << outcome.message;
                    EXPECT_TRUE(holds(outcome.message, "shards")) << outcome.message;
                    EXPECT_TRUE(holds(outcome.message, "rank " + std::to_string(odd))) << outcome.message;
                    EXPECT_TRUE(outcome.untouched);
                }
                expect_service(comms);
            }
}

TEST(Agreement, RefusesASequenceOfNoRows) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes) {
        std::vector<Part> parts(ranks);
        for (Part &part : parts) {
            part.pass = pass;
            part.rows = 0;
        }
        for (const Outcome &outcome : call_all(parts, comms)) {
            EXPECT_EQ(outcome.status, ANNULUS_ERROR_ARGUMENT) << outcome.message;
            EXPECT_TRUE(holds(outcome.message, "shape[1] of q is 0")) << outcome.message;
        }
        expect_service(comms);
    }
}

TEST(Agreement, LooksAtEveryBranchOfMany) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const std::size_t branch : {0, 30, 31, 32, 44}) {
        std::vector<Part> parts(ranks);
        for (Part &part : parts)
            part.problem.branches.assign(45, BranchSpec{});
        parts[1].problem.branches[branch].dilation = 2;
        for (const Outcome &outcome : call_all(parts, comms)) {
            EXPECT_EQ(outcome.status, ANNULUS_ERROR_ARGUMENT);
            const std::string name = "branch " + std::to_string(std::min<std::size_t>(branch, 31));
            EXPECT_TRUE(holds(outcome.message, name + (branch < 31 ? " " : " or a later one"))) << outcome.message;
            EXPECT_TRUE(outcome.untouched);
        }
    }
    expect_service(comms);
}

// Lengths may be set or not; engines, threads and what need not be the same may differ.
TEST(Agreement, DoesNotMindWhatDoesNotMatter) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    std::vector<Part> parts(ranks);
    parts[1].lengths = {8, 8, 8};
    parts[1].prepare = [](annulus_context *context) { check(annulus_context_set_threads(context, 3)); };
    parts[2].configure = [](annulus_config *config) {
        check(annulus_config_set_engine(config, ANNULUS_ENGINE_CPU));
        check(annulus_config_set_deterministic(config, 1));
        check(annulus_config_set_allow_tf32(config, 1));
        check(annulus_config_set_workspace_limit(config, 1 << 20));
    };
    for (const annulus_pass pass : passes) {
        for (Part &part : parts)
            part.pass = pass;
        for (const Outcome &outcome : call_all(parts, comms)) {
            EXPECT_EQ(outcome.status, ANNULUS_OK) << outcome.message;
            EXPECT_FALSE(outcome.untouched);
        }
    }
}

// ---- Ranks whose own arguments are bad.

void *no_memory(void *, std::size_t, std::size_t, void *) {
    return nullptr;
}
void nothing_to_release(void *, void *, std::size_t, void *) {}

Otherwise of_arguments(const std::string &name, const std::string &words,
                       const std::function<void(Call::Arguments &, Pointers &)> &spoil) {
    return {name, words, [spoil](Part &part, int) { part.spoil = spoil; }};
}

std::vector<Otherwise> bad_parts() {
    static char byte;
    static const annulus_window window = ANNULUS_WINDOW_INIT;
    return {
        of_arguments("stride", "q", [](Call::Arguments &a, Pointers &) { a.q.stride[3] = 2; }),
        of_arguments("null_k", "k is NULL", [](Call::Arguments &, Pointers &p) { p.k = nullptr; }),
        of_arguments("null_out", "out is NULL", [](Call::Arguments &, Pointers &p) { p.out = nullptr; }),
        of_arguments("null_data", "v", [](Call::Arguments &a, Pointers &) { a.v.data = nullptr; }),
        of_arguments("dtype", "dtype",
                     [](Call::Arguments &a, Pointers &) {
                         const int none = 9;
                         std::memcpy(&a.q.dtype, &none, sizeof none);
                     }),
        of_arguments("shape_of_v", "shape", [](Call::Arguments &a, Pointers &) { a.v.shape[1] = 7; }),
        of_arguments("too_long", "",
                     [](Call::Arguments &a, Pointers &) {
                         for (annulus_tensor *tensor : {&a.q, &a.k, &a.v})
                             tensor->shape[1] = std::numeric_limits<std::int64_t>::max() / 2;
                     }),
        of_arguments("rows_of_lse", "lse", [](Call::Arguments &a, Pointers &) { a.lse.shape[2] = 0; }),
        of_arguments("overlap", "out", [](Call::Arguments &a, Pointers &) { a.out.data = a.d_q.data = a.q.data; }),
        {"window", "window",
         [](Part &part, int) { part.spoil = [](Call::Arguments &, Pointers &p) { p.window = &window; }; },
         ANNULUS_ERROR_UNSUPPORTED},
        {"no_config", "config", [](Part &part, int) { part.has_config = false; }},
        {"head_dim", "head dimension", [](Part &part, int) { part.problem.dim = 12; }, ANNULUS_ERROR_UNSUPPORTED},
        {"heads_of_a_branch", "branch 0",
         [](Part &part, int) {
             part.lengths.assign(ranks, part.rows); // or the ranks compare configs first
             part.configure = [](annulus_config *config) { check(annulus_config_set_branch_heads(config, 0, 3, 2)); };
         }},
        {"reference", "reference",
         [](Part &part, int) {
             part.configure = [](annulus_config *config) {
                 check(annulus_config_set_engine(config, ANNULUS_ENGINE_REFERENCE));
             };
         },
         ANNULUS_ERROR_UNSUPPORTED},
        {"rows", "rows", [](Part &part, int) { part.lengths.assign(ranks, part.rows + 1); }},
        {"workspace", "workspace",
         [](Part &part, int) {
             part.prepare = [](annulus_context *context) { check(annulus_context_set_workspace(context, &byte, 1)); };
         },
         ANNULUS_ERROR_MEMORY},
        {"workspace_limit", "limit",
         [](Part &part, int) {
             part.configure = [](annulus_config *config) { check(annulus_config_set_workspace_limit(config, 1)); };
         },
         ANNULUS_ERROR_MEMORY},
        {"allocator", "allocator",
         [](Part &part, int) {
             part.prepare = [](annulus_context *context) {
                 annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
                 allocator.allocate = no_memory;
                 allocator.release = nothing_to_release;
                 check(annulus_context_set_allocator(context, &allocator));
             };
         },
         ANNULUS_ERROR_MEMORY},
    };
}

// The others learn who cannot do its part, and why.
void expect_told(const Outcome &outcome, int rank, const Outcome &bad) {
    EXPECT_EQ(outcome.status, ANNULUS_ERROR_COMM) << outcome.message;
    EXPECT_TRUE(holds(outcome.message, "rank " + std::to_string(rank) + " ")) << outcome.message;
    EXPECT_TRUE(holds(outcome.message, bad.message.substr(0, 255))) << outcome.message;
    EXPECT_TRUE(outcome.untouched);
}

class BadPart : public testing::TestWithParam<Otherwise> {
  protected:
    void expect_own_message(const Outcome &outcome) {
        EXPECT_EQ(outcome.status, GetParam().status) << outcome.message;
        EXPECT_TRUE(holds(outcome.message, GetParam().words)) << outcome.message;
        EXPECT_TRUE(outcome.untouched);
    }
};

TEST_P(BadPart, IsToldToTheOthers) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes)
        for (int odd = 0; odd < ranks; ++odd) {
            SCOPED_TRACE(testing::Message() << "pass " << pass << ", bad rank " << odd);
            std::vector<Part> parts(ranks);
            for (Part &part : parts)
                part.pass = pass;
            GetParam().change(parts[odd], odd);
            const std::vector<Outcome> outcomes = call_all(parts, comms);
            for (int rank = 0; rank < ranks; ++rank)
                if (rank == odd)
                    expect_own_message(outcomes[rank]);
                else
                    expect_told(outcomes[rank], odd, outcomes[odd]);
            expect_service(comms);
        }
}

// Each has its own message; who has none gets that of the first.
TEST_P(BadPart, OfSeveralRanks) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    std::vector<Part> parts(ranks);
    for (Part &part : parts) // or those who lack something for the lengths would learn of the others first
        part.lengths = {8, 8, 8};
    parts[0].problem.batch = 1; // and nobody looks for other differences
    GetParam().change(parts[1], 1);
    parts[2].spoil = [](Call::Arguments &, Pointers &p) { p.v = nullptr; };
    std::vector<Outcome> outcomes = call_all(parts, comms);
    expect_told(outcomes[0], 1, outcomes[1]);
    expect_own_message(outcomes[1]);
    EXPECT_EQ(outcomes[2].status, ANNULUS_ERROR_ARGUMENT);
    EXPECT_EQ(outcomes[2].message, "v is NULL");
    for (int rank = 0; rank < ranks; ++rank) {
        parts[rank] = {};
        GetParam().change(parts[rank], rank);
    }
    for (const Outcome &outcome : call_all(parts, comms))
        expect_own_message(outcome);
    expect_service(comms);
}

INSTANTIATE_TEST_SUITE_P(Arguments, BadPart, testing::ValuesIn(bad_parts()), name_of);

// ---- Ranks that are lost. Timeouts of a minute are not waited for: the test's own is shorter.

// All but one rank call, whose part `instead` plays; all of them fail with one message, at once from then on.
void expect_loss(const std::vector<Comm> &comms, int lost, const std::string &words, double timeout,
                 const std::function<void()> &instead) {
    std::vector<std::vector<Outcome>> outcomes(ranks);
    for (const annulus_pass pass : passes)
        for_each_rank(ranks, [&](int rank) {
            if (rank == lost) {
                if (pass == passes[0])
                    instead();
                return;
            }
            Part part;
            part.pass = pass;
            part.timeout = pass == passes[0] ? timeout : 600;
            Caller caller(part, comms[rank].get());
            for (int i = 0; i < 2; ++i)
                outcomes[rank].push_back(caller.call());
        });
    for (const std::vector<Outcome> &of_rank : outcomes)
        for (const Outcome &outcome : of_rank) {
            EXPECT_EQ(outcome.status, ANNULUS_ERROR_COMM);
            EXPECT_EQ(outcome.message, outcomes[(lost + 1) % ranks].front().message);
            EXPECT_TRUE(holds(outcome.message, words)) << outcome.message;
            EXPECT_TRUE(outcome.untouched);
        }
}

class Loss : public testing::TestWithParam<int> {
  protected:
    const int lost_ = GetParam();
    const std::string name_ = "rank " + std::to_string(lost_) + " ";
    std::vector<Comm> comms_ = make_local_comms(ranks);
};

TEST_P(Loss, ARankThatNeverCalls) {
    const auto begin = std::chrono::steady_clock::now();
    expect_loss(comms_, lost_, name_ + "did not come", 0.5, [] {});
    const auto end = std::chrono::steady_clock::now();
    EXPECT_GE(end - begin, 500ms);
    EXPECT_LT(end - begin, 30s);
    const Outcome late = Caller(Part{}, comms_[lost_].get()).call();
    EXPECT_EQ(late.status, ANNULUS_ERROR_COMM);
    EXPECT_TRUE(holds(late.message, name_ + "did not come")) << late.message;
}

TEST_P(Loss, ARankThatDestroysItsEnd) {
    expect_service(comms_);
    expect_loss(comms_, lost_, name_ + "destroyed", 60, [&] {
        std::this_thread::sleep_for(20ms);
        comms_[lost_].reset();
    });
}

TEST_P(Loss, ARankThatLeftBefore) {
    comms_[lost_].reset();
    expect_loss(comms_, lost_, name_ + "destroyed", 60, [] {});
}

TEST_P(Loss, ARankThatAborts) {
    expect_loss(comms_, lost_, name_ + "aborted", 60, [&] {
        std::this_thread::sleep_for(20ms);
        check(annulus_comm_abort(comms_[lost_].get()));
    });
}

TEST_P(Loss, AnotherThreadAbortsARanksOwnCall) {
    const int waiting = (lost_ + 1) % ranks;
    expect_loss(comms_, lost_, "rank " + std::to_string(waiting) + " aborted", 60, [&] {
        std::this_thread::sleep_for(20ms);
        check(annulus_comm_abort(comms_[waiting].get()));
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Loss, testing::Range(0, ranks), testing::PrintToStringParamName());

// Wherever the abort meets the calls, each of them is done or fails, and none hangs.
TEST(Abort, InTheMidstOfCalls) {
    for (int i = 0; i < 40; ++i) {
        const std::vector<Comm> comms = make_local_comms(ranks);
        std::latch started(ranks + 1);
        std::thread aborter([&] {
            started.arrive_and_wait();
            std::this_thread::sleep_for(std::chrono::microseconds(i * 50));
            EXPECT_EQ(annulus_comm_abort(comms[i % ranks].get()), ANNULUS_OK);
        });
        for_each_rank(ranks, [&](int rank) {
            Part part;
            part.pass = passes[i % 2];
            part.exchange = i % 4 < 2 ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER;
            Caller caller(part, comms[rank].get());
            started.arrive_and_wait();
            Outcome outcome;
            while (outcome.status == ANNULUS_OK)
                outcome = caller.call();
            EXPECT_EQ(outcome.status, ANNULUS_ERROR_COMM) << outcome.message;
            EXPECT_TRUE(holds(outcome.message, "aborted")) << outcome.message;
        });
        aborter.join();
    }
}

// A rank that has done its part may go at once, with its tensors and context, while the others are still at theirs.
TEST(Leaving, AfterOnesPart) {
    for (int i = 0; i < 40; ++i) {
        std::vector<Comm> comms = make_local_comms(ranks);
        for_each_rank(ranks, [&](int rank) {
            Part part;
            part.pass = passes[i % 2];
            part.exchange = i % 4 < 2 ? ANNULUS_EXCHANGE_RING : ANNULUS_EXCHANGE_GATHER;
            const Outcome outcome = Caller(part, comms[rank].get()).call();
            comms[rank].reset();
            EXPECT_EQ(outcome.status, ANNULUS_OK) << outcome.message;
        });
    }
}

} // namespace
} // namespace annulus::test
