// SPDX-License-Identifier: Apache-2.0
// Ranks that disagree: all of them get an error, and the communicator serves the next call.
#include "ranks/callers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

Difference different_problem(const std::string &name, const std::string &words,
                             const std::function<void(Problem &)> &change) {
    return {name, words, [change](Part &part, int) { change(part.problem); }};
}

Difference different_branch(const std::string &name, const std::function<void(BranchSpec &)> &change) {
    return different_problem(name, "branch 1 ", [change](Problem &problem) { change(problem.branches[1]); });
}

Sequences halves() {
    return {{0, 12, 24}, {}};
}

std::vector<Part> parts_of(annulus_pass pass) {
    std::vector<Part> parts(ranks);
    for (Part &part : parts)
        part.pass = pass;
    return parts;
}

// Checks that all ranks refuse the call with these words, and that the communicator serves the next call.
void expect_refused(
    const std::vector<Part> &parts, const std::vector<Comm> &comms, const std::string &words,
    const std::function<void(const std::string &)> &check_message = [](const std::string &) {}) {
    for (const Outcome &outcome : call_all(parts, comms)) {
        EXPECT_EQ(outcome.status, ANNULUS_ERROR_ARGUMENT) << outcome.message;
        EXPECT_TRUE(holds(outcome.message, words)) << outcome.message;
        check_message(outcome.message);
        EXPECT_TRUE(outcome.untouched);
    }
    expect_service(comms);
}

// Checks that a message names the rank that differs, or rank 1 if all ranks differ from rank 0.
std::function<void(const std::string &)> names_odd(int odd) {
    const std::string number = std::to_string(odd ? odd : 1);
    return [number](const std::string &message) {
        EXPECT_TRUE(holds(message, "rank " + number) || holds(message, "ranks " + number)) << message;
    };
}

std::vector<Difference> disagreements() {
    return {
        different_problem("dtype", "dtype", [](Problem &p) { p.dtype = ANNULUS_FLOAT64; }),
        different_problem("dtype_of_the_same_size", "dtype", [](Problem &p) { p.dtype = ANNULUS_BFLOAT16; }),
        different_problem("heads", "query heads", [](Problem &p) { p.heads = 8; }),
        different_problem("kv_heads", "key/value heads", [](Problem &p) { p.kv_heads = 4; }),
        different_problem("head_dim", "head dimension", [](Problem &p) { p.dim = 16; }),
        different_problem("batch", "batch", [](Problem &p) { p.batch = 1; }),
        different_problem("causal", "causal", [](Problem &p) { p.causal = true; }),
        different_problem("padding", "padding", [](Problem &p) { p.zero_keys = true; }),
        different_problem("key_rule", "key rule", [](Problem &p) { p.keys_once = true; }),
        different_problem("first_head_of_shard", "first head",
                          [](Problem &p) {
                              p.head_shard = {1, p.heads + 1};
                          }),
        different_problem("total_heads", "total",
                          [](Problem &p) {
                              p.head_shard = {0, p.heads};
                          }),
        different_problem("scale", "scale", [](Problem &p) { p.scale = 0.5; }),
        different_problem("sequences_on_one_rank", "the number of sequences",
                          [](Problem &p) { p.sequences = halves(); }),
        different_problem("more_branches", "branches", [](Problem &p) { p.branches.emplace_back(); }),
        different_problem("fewer_branches", "branches", [](Problem &p) { p.branches.pop_back(); }),
        different_branch("segment_length", [](BranchSpec &b) { b.segment = 8; }),
        different_branch("dilation", [](BranchSpec &b) { b.dilation = 4; }),
        different_branch("phase_rule", [](BranchSpec &b) { b.phase = ANNULUS_PHASE_INTERLEAVE, b.residue = 0; }),
        different_branch("residue", [](BranchSpec &b) { b.residue = 2; }),
        different_branch("query_rule", [](BranchSpec &b) { b.query = ANNULUS_QUERY_DILATED; }),
        different_branch("order", [](BranchSpec &b) { b.order = ANNULUS_ORDER_LINEAR, b.width = 0; }),
        different_branch("grid_width", [](BranchSpec &b) { b.width = 3; }),
        different_branch("first_head", [](BranchSpec &b) { b.first_head = 2; }),
        different_branch("head_count", [](BranchSpec &b) { b.head_count = 3; }),
        different_branch("kind", [](BranchSpec &b) { b = window_spec(4, 1); }),
        {"exchange", "exchange", [](Part &part, int) { part.exchange = ANNULUS_EXCHANGE_RING; }},
        {"pass", "annulus_forward() and rank 0 annulus_backward()",
         [](Part &part, int) {
             part.pass = part.pass == ANNULUS_PASS_FORWARD ? ANNULUS_PASS_BACKWARD : ANNULUS_PASS_FORWARD;
         }},
        {"mass", "annulus_attention_mass()", [](Part &part, int) { part.pass = ANNULUS_PASS_MASS; }},
    };
}

class Disagreement : public testing::TestWithParam<Difference> {};

TEST_P(Disagreement, IsAnErrorOnAllRanks) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes)
        for (int odd = 0; odd < ranks; ++odd) {
            SCOPED_TRACE(testing::Message() << "pass " << pass << ", rank " << odd << " differs");
            std::vector<Part> parts = parts_of(pass);
            GetParam().change(parts[odd], odd);
            std::string words = GetParam().words;
            if (GetParam().name == "pass" && parts[0].pass == ANNULUS_PASS_FORWARD)
                words = "annulus_backward() and rank 0 annulus_forward()";
            expect_refused(parts, comms, words, names_odd(odd));
        }
}

INSTANTIATE_TEST_SUITE_P(Fields, Disagreement, testing::ValuesIn(disagreements()), name_of);

TEST(Agreement, IsAboutBothSidesOfAWindow) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const BranchSpec &other : {window_spec(5, 1), window_spec(4, 2)}) {
        std::vector<Part> parts(ranks);
        for (Part &part : parts)
            part.problem.branches = {window_spec(4, 1)};
        parts[1].problem.branches = {other};
        expect_refused(parts, comms, "branch 0 ");
    }
}

TEST(Agreement, IsAboutEverySequence) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    const std::vector<Sequences> others = {
        {{0, 11, 24}, {}}, {{1, 12, 24}, {}}, {{0, 12, 23}, {}}, {{0, 12, 24}, {12, 11}}, {{}, {24, 24}}};
    for (const annulus_pass pass : passes)
        for (const Sequences &other : others)
            for (int odd = 0; odd < ranks; ++odd) {
                SCOPED_TRACE(testing::Message()
                             << "pass " << pass << ", rank " << odd << ": " << testing::PrintToString(other.starts));
                std::vector<Part> parts = parts_of(pass);
                for (Part &part : parts)
                    part.problem.sequences = halves();
                parts[odd].problem.sequences = other;
                expect_refused(parts, comms, "sequence_starts or sequence_lengths differ", names_odd(odd));
            }
}

// Only all ranks together know the number of rows.
TEST(Agreement, RefusesSequencesBeyondAllRows) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes)
        for (const Sequences &sequences :
             {Sequences{{0, 12, 25}, {}}, Sequences{{25, 25}, {}}, Sequences{{}, {24, 25}}}) {
            SCOPED_TRACE(testing::Message() << "pass " << pass << " " << testing::PrintToString(sequences.starts));
            std::vector<Part> parts = parts_of(pass);
            for (Part &part : parts)
                part.problem.sequences = sequences;
            expect_refused(parts, comms, "24 rows on all ranks");
        }
}

// The shards that a rank sets must be the shards of all ranks. Here one rank's differ, except in its own length. The
// other ranks set the true shards, or none.
TEST(Agreement, ChecksTheShardsThatWereSet) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes)
        for (int odd = 0; odd < ranks; ++odd)
            for (const bool all : {false, true}) {
                SCOPED_TRACE(testing::Message() << "pass " << pass << ", rank " << odd << ", all set " << all);
                std::vector<Part> parts = parts_of(pass);
                if (all)
                    for (Part &part : parts)
                        part.lengths = {8, 8, 8};
                parts[odd].lengths = {8, 8, 8};
                parts[odd].lengths[(odd + 1) % ranks] -= 1;
                parts[odd].lengths[(odd + 2) % ranks] += 1;
                expect_refused(parts, comms, "shards", [odd](const std::string &message) {
                    EXPECT_TRUE(holds(message, "rank " + std::to_string(odd))) << message;
                });
            }
}

// If a rank has several shards, all ranks must have set shards, and the same.
TEST(Agreement, ChecksWhoseShardsTheyAre) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    const std::vector<std::int64_t> lengths = {4, 4, 4, 4, 4, 4};
    const std::vector<std::int32_t> zigzag = {0, 1, 2, 2, 1, 0}, striped = {0, 1, 2, 0, 1, 2};
    struct Shards {
        std::vector<std::int64_t> lengths;
        std::vector<std::int32_t> owners;
    };
    const Shards none, contiguous{{8, 8, 8}, {}}, folded{lengths, zigzag}, in_turns{lengths, striped};
    for (const annulus_pass pass : passes)
        for (int odd = 0; odd < ranks; ++odd)
            for (const auto &[odd_shards, other_shards] : {std::pair(&folded, &none),
                                                           {&folded, &contiguous},
                                                           {&none, &folded},
                                                           {&contiguous, &folded},
                                                           {&in_turns, &folded}}) {
                SCOPED_TRACE(testing::Message() << "pass " << pass << ", rank " << odd << ", owners "
                                                << testing::PrintToString(odd_shards->owners) << " and "
                                                << testing::PrintToString(other_shards->owners));
                std::vector<Part> parts = parts_of(pass);
                for (int rank = 0; rank < ranks; ++rank) {
                    const Shards &shards = rank == odd ? *odd_shards : *other_shards;
                    parts[rank].lengths = shards.lengths;
                    parts[rank].owners = shards.owners;
                }
                expect_refused(parts, comms, "annulus_context_set_shards()");
            }
}

TEST(Agreement, RefusesASequenceOfNoRows) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const annulus_pass pass : passes) {
        std::vector<Part> parts = parts_of(pass);
        for (Part &part : parts)
            part.rows = 0;
        expect_refused(parts, comms, "shape[1] of q is 0");
    }
}

TEST(Agreement, LooksAtEveryBranchOfMany) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    for (const std::size_t branch : {0, 30, 31, 32, 44}) {
        std::vector<Part> parts(ranks);
        for (Part &part : parts)
            part.problem.branches.assign(45, BranchSpec{});
        parts[1].problem.branches[branch].dilation = 2;
        const std::string name = "branch " + std::to_string(std::min<std::size_t>(branch, 31));
        expect_refused(parts, comms, name + (branch < 31 ? " " : " or a later one"));
    }
}

// Ranks may differ in whether they set lengths, and in engines, threads, TF32 and workspace limits.
TEST(Agreement, DoesNotMindWhatDoesNotMatter) {
    const std::vector<Comm> comms = make_local_comms(ranks);
    std::vector<Part> parts(ranks);
    parts[1].lengths = {8, 8, 8};
    parts[1].prepare = [](annulus_context *context) { check(annulus_context_set_threads(context, 3)); };
    parts[2].configure = [](annulus_config *config) {
        check(annulus_config_set_engine(config, ANNULUS_ENGINE_CPU));
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

} // namespace
} // namespace annulus::test
