// SPDX-License-Identifier: Apache-2.0
// One rank has bad arguments: it gets a message of its own, the other ranks learn of it, and the communicator serves
// the next call.
#include "ranks/callers.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

void *no_memory(void *, std::size_t, std::size_t, void *) {
    return nullptr;
}
void nothing_to_release(void *, void *, std::size_t, std::size_t, void *) {}

Difference bad_arguments(const std::string &name, const std::string &words,
                         const std::function<void(Call::Arguments &, Pointers &)> &spoil) {
    return {name, words, [spoil](Part &part, int) { part.spoil = spoil; }};
}

// One part for each place that can refuse a call. The tests of the C API have all reasons.
std::vector<Difference> bad_parts() {
    static char byte;
    static annulus_call_options window = ANNULUS_CALL_OPTIONS_INIT;
    window.flags = ANNULUS_CALL_QUERY_WINDOW;
    return {
        bad_arguments("null_k", "k is NULL", [](Call::Arguments &, Pointers &p) { p.k = nullptr; }),
        bad_arguments("overlap", "out", [](Call::Arguments &a, Pointers &) { a.out.data = a.d_q.data = a.q.data; }),
        {"window", "ANNULUS_CALL_QUERY_WINDOW",
         [](Part &part, int) { part.spoil = [](Call::Arguments &, Pointers &p) { p.options = &window; }; },
         ANNULUS_ERROR_UNSUPPORTED},
        {"no_config", "config", [](Part &part, int) { part.has_config = false; }},
        {"head_dim", "head dimension", [](Part &part, int) { part.problem.dim = 12; }, ANNULUS_ERROR_UNSUPPORTED},
        {"heads_of_a_branch", "branch 0",
         [](Part &part, int) {
             part.lengths.assign(ranks, part.rows); // else the ranks compare configs first
             part.configure = [](annulus_config *config) {
                 annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
                 check(annulus_config_get_branch(config, 0, &branch));
                 branch.first_head = 3;
                 branch.head_count = 2;
                 check(annulus_config_set_branch(config, 0, &branch));
             };
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
         ANNULUS_ERROR_WORKSPACE},
        {"workspace_limit", "limit",
         [](Part &part, int) {
             part.configure = [](annulus_config *config) { check(annulus_config_set_workspace_limit(config, 1)); };
         },
         ANNULUS_ERROR_WORKSPACE},
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

// Checks that a rank has learnt which rank cannot do its part, and why.
void expect_told(const Outcome &outcome, int rank, const Outcome &bad) {
    EXPECT_EQ(outcome.status, ANNULUS_ERROR_DECLINED) << outcome.message;
    EXPECT_TRUE(holds(outcome.message, "rank " + std::to_string(rank) + " ")) << outcome.message;
    EXPECT_TRUE(holds(outcome.message, bad.message.substr(0, 255))) << outcome.message;
    EXPECT_TRUE(outcome.untouched);
}

class BadPart : public testing::TestWithParam<Difference> {
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

// Each bad rank has its own message. A good rank gets the message of the first bad rank.
TEST_P(BadPart, OfSeveralRanks) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    std::vector<Part> parts(ranks);
    for (Part &part : parts) // else a rank that cannot prepare would first hear of the other ranks' failures
        part.lengths = {8, 8, 8};
    parts[0].problem.batch = 1; // a difference that is not looked at, since ranks decline
    GetParam().change(parts[1], 1);
    parts[2].spoil = [](Call::Arguments &, Pointers &p) { p.v = nullptr; };
    std::vector<Outcome> outcomes = call_all(parts, comms);
    expect_told(outcomes[0], 1, outcomes[1]);
    expect_own_message(outcomes[1]);
    EXPECT_EQ(outcomes[2].status, ANNULUS_ERROR_ARGUMENT);
    EXPECT_EQ(outcomes[2].message, "v is NULL; it must not be");
    for (int rank = 0; rank < ranks; ++rank) {
        parts[rank] = {};
        GetParam().change(parts[rank], rank);
    }
    for (const Outcome &outcome : call_all(parts, comms))
        expect_own_message(outcome);
    expect_service(comms);
}

INSTANTIATE_TEST_SUITE_P(Arguments, BadPart, testing::ValuesIn(bad_parts()), name_of);

} // namespace
} // namespace annulus::test
