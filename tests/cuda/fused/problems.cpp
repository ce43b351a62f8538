// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/problems.hpp"

#include "engines/subject.hpp"

namespace annulus::test {

std::vector<NamedProblem> patterns() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    constexpr auto interleave = ANNULUS_PHASE_INTERLEAVE;
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    std::vector<BranchSpec> twelve;
    for (int i = 0; i < 12; ++i)
        twelve.push_back(
            {.segment = 16 << (i / 2), .dilation = 1 << (i / 2), .phase = i % 2 ? interleave : ANNULUS_PHASE_BLOCK});
    std::vector<BranchSpec> forty; // some with one key each, some with many
    for (int i = 0; i < 40; ++i)
        forty.push_back({.segment = 3 + 7 * i, .dilation = 1 + i % 9});
    const std::vector<BranchSpec> primes = {
        {.segment = 100, .dilation = 2}, {.segment = 210, .dilation = 3}, {.dilation = 5}};
    std::vector<BranchSpec> primes_of_residues = primes, primes_of_every = primes;
    for (std::size_t i = 0; i < primes.size(); ++i) {
        primes_of_residues[i].query = residue;
        primes_of_every[i].query = every;
    }
    const std::vector<NamedProblem> problems = {
        {"twelve_branches", {.length = 700, .heads = 6, .dim = 64, .branches = twelve}},
        {"forty_branches", {.length = 300, .heads = 4, .kv_heads = 2, .dim = 16, .branches = forty}},
        {"dilations_2_3_5", {.length = 431, .heads = 5, .dim = 64, .branches = primes}},
        {"dilations_2_3_5_residue", {.length = 431, .heads = 2, .dim = 64, .branches = primes_of_residues}},
        {"dilations_2_3_5_every", {.length = 431, .heads = 5, .dim = 64, .branches = primes_of_every}},
        {"dilations_4_6",
         {.length = 500, .heads = 4, .dim = 128, .branches = {{.segment = 240, .dilation = 4}, {.dilation = 6}}}},
        {"segments_that_do_not_nest",
         {.length = 997,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 130}, {.segment = 170, .dilation = 2}, {.segment = 500, .dilation = 4}}}},
        {"nested_with_repeated_keys",
         {.length = 1024,
          .heads = 8,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.segment = 128, .dilation = 2},
                       {.segment = 256, .dilation = 4},
                       {.segment = 512, .dilation = 8},
                       {.dilation = 16}}}},
        {"hilbert_and_linear",
         {.length = 18 * 24,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.dilation = 4, .order = hilbert, .width = 24},
                       {.segment = 216, .dilation = 2}}}},
        {"hilbert_residue_and_linear_every",
         {.length = 18 * 24,
          .heads = 4,
          .kv_heads = 2,
          .dim = 40,
          .branches = {{.dilation = 3, .query = residue, .order = hilbert},
                       {.segment = 144, .dilation = 4, .query = every}}}},
        {"all_query_rules",
         {.length = 389,
          .heads = 6,
          .dim = 64,
          .branches = {{.segment = 128},
                       {.segment = 200, .dilation = 4, .query = residue},
                       {.dilation = 8, .query = every}}}},
        {"head_ranges",
         {.length = 300,
          .heads = 7,
          .dim = 64,
          .branches = {{.segment = 64, .first_head = 2, .head_count = 3},
                       {.segment = 150, .dilation = 4, .head_count = 5},
                       {.dilation = 2, .first_head = 6, .head_count = 1}}}},
        {"window",
         {.batch = 2,
          .length = 700,
          .heads = 4,
          .kv_heads = 1,
          .dim = 64,
          .branches = {{.segment = 300}, {.dilation = 4}},
          .window = QueryWindow{129, 321}}},
        // Nothing is ragged: every tile is full.
        {"whole_units", {.batch = 2, .length = 512, .heads = 3, .dim = 64, .branches = {{.segment = 256}}}},
        {"whole_units_dilated",
         {.batch = 2,
          .length = 512,
          .heads = 4,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 256, .dilation = 2, .phase = interleave}}}},
        // Tiles of dQ with three row blocks, and with one. The sequence cuts segments short.
        {"whole_units_of_three", {.length = 384, .heads = 2, .dim = 88, .branches = {{.segment = 192}}}},
        {"whole_units_of_five", {.length = 704, .heads = 2, .dim = 72, .branches = {{.segment = 320}}}},
        // The heads that share keys attend to different keys.
        {"grouped",
         {.batch = 2,
          .length = 500,
          .heads = 8,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 128},
                       {.segment = 250, .dilation = 2, .phase = interleave},
                       {.dilation = 4, .phase = interleave}}}},
        {"grouped_of_one_branch",
         {.length = 403,
          .heads = 6,
          .kv_heads = 1,
          .dim = 128,
          .branches = {{.segment = 200, .dilation = 8, .phase = interleave}}}},
        {"grouped_head_ranges",
         {.length = 300,
          .heads = 6,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 64, .first_head = 1, .head_count = 3}, {.dilation = 3, .head_count = 5}}}},
        {"grouped_dilations_2_3",
         {.length = 431,
          .heads = 6,
          .kv_heads = 2,
          .dim = 80,
          .branches = {{.segment = 100, .dilation = 2, .phase = interleave}, {.dilation = 3, .phase = interleave}}}},
        {"dim_192",
         {.length = 420,
          .heads = 3,
          .dim = 192,
          .branches = {{.segment = 64}, {.segment = 150, .dilation = 2}, {.dilation = 4, .query = residue}}}},
        {"dim_192_grouped",
         {.length = 420,
          .heads = 4,
          .kv_heads = 2,
          .dim = 192,
          .branches = {{.segment = 70}, {.segment = 210, .dilation = 2}, {.dilation = 4, .phase = interleave}}}},
        {"dim_256",
         {.length = 420,
          .heads = 3,
          .dim = 256,
          .branches = {{.segment = 64}, {.segment = 128, .dilation = 2}, {.segment = 256, .dilation = 4}}}},
        {"dim_256_grouped",
         {.length = 420,
          .heads = 4,
          .kv_heads = 1,
          .dim = 256,
          .branches = {{.segment = 100}, {.segment = 300, .dilation = 6, .query = every}, {.dilation = 3}}}},
        {"every_beside_others",
         {.length = 500,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 128}, {.segment = 256, .dilation = 4, .query = every}, {.dilation = 8}}}},
        {"every_of_two_dilations",
         {.length = 430,
          .heads = 6,
          .kv_heads = 3,
          .dim = 128,
          .branches = {{.segment = 200, .dilation = 3, .query = every}, {.dilation = 6, .query = every}}}},
        // One grid over queries, two over keys.
        {"every_and_residue",
         {.length = 430,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 210, .dilation = 2, .query = every}, {.dilation = 4, .query = residue}}}},
        {"segments_that_nest_unevenly",
         {.length = 1000,
          .heads = 4,
          .dim = 128,
          .branches = {{.segment = 100}, {.segment = 200, .dilation = 2}, {.segment = 400, .dilation = 4}}}},
        {"segments_that_nest_in_part",
         {.length = 900,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 64},
                       {.segment = 96, .dilation = 2},
                       {.segment = 192, .dilation = 4},
                       {.segment = 288, .dilation = 8}}}},
        {"window_of_one_query",
         {.length = 501,
          .heads = 8,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 200}, {.dilation = 4, .phase = interleave, .query = every}},
          .window = QueryWindow{450, 1}}},
        // Most keys are in segments without queries.
        {"window_of_some_segments",
         {.batch = 2,
          .length = 700,
          .heads = 4,
          .kv_heads = 2,
          .dim = 192,
          .branches = {{.segment = 100}, {.segment = 150, .dilation = 2, .query = residue}},
          .window = QueryWindow{130, 200}}},
        {"hilbert_grouped",
         {.length = 18 * 24,
          .heads = 6,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 216, .dilation = 3, .phase = interleave, .order = hilbert},
                       {.dilation = 2, .query = residue, .order = hilbert, .width = 24}}}},
        {"hilbert_grouped_every",
         {.length = 18 * 24,
          .heads = 4,
          .kv_heads = 1,
          .dim = 256,
          .branches = {{.segment = 70}, {.dilation = 4, .phase = interleave, .query = every, .order = hilbert}}}},
        {"hilbert_window_of_whole_segments",
         {.batch = 2,
          .length = 432,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 100, .dilation = 2}, {.segment = 144, .dilation = 3, .order = hilbert}},
          .window = QueryWindow{144, 144}}},
        // If the only branch follows a curve, its rows are read and written in place. The last segment is short.
        {"hilbert_alone",
         {.batch = 2,
          .length = 1100,
          .heads = 5,
          .dim = 72,
          .branches = {{.segment = 800, .dilation = 3, .order = hilbert}}}},
        {"hilbert_alone_of_residues",
         {.length = 18 * 72,
          .heads = 2,
          .dim = 192,
          .branches = {{.segment = 648, .dilation = 2, .query = residue, .order = hilbert}}}},
        {"hilbert_alone_of_every",
         {.length = 900,
          .heads = 3,
          .dim = 32,
          .branches = {{.dilation = 3, .phase = interleave, .query = every, .order = hilbert, .width = 20}}}},
        {"hilbert_alone_in_a_window",
         {.length = 1200,
          .heads = 4,
          .kv_heads = 2,
          .dim = 256,
          .branches = {{.segment = 400, .dilation = 2, .order = hilbert}},
          .window = QueryWindow{400, 400}}},
        // No branch serves some of the heads.
        {"hilbert_alone_of_some_heads",
         {.length = 700,
          .heads = 5,
          .dim = 16,
          .branches = {{.segment = 350, .dilation = 2, .order = hilbert, .first_head = 1, .head_count = 3}}}},
        {"hilbert_alone_in_short_segments",
         {.batch = 2,
          .length = 500,
          .heads = 6,
          .kv_heads = 2,
          .dim = 48,
          .branches = {{.segment = 30, .dilation = 2, .phase = interleave, .order = hilbert}}}},
        {"hilbert_of_two_lengths",
         {.batch = 2,
          .length = 1111,
          .heads = 6,
          .kv_heads = 3,
          .dim = 96,
          .branches = {{.segment = 64},
                       {.segment = 300, .dilation = 2, .order = hilbert},
                       {.segment = 900, .dilation = 6, .order = hilbert}}}},
        {"hilbert_of_whole_units",
         {.length = 1024,
          .heads = 4,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 512, .dilation = 4, .order = hilbert, .width = 16}}}},
    };
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems) {
        all.push_back(named);
        all.push_back({named.name + "_causal", named.problem});
        all.back().problem.causal = true;
        all.push_back({named.name + "_zero_keys", named.problem});
        all.back().problem.zero_keys = true;
        for (const bool causal : {false, true}) {
            all.push_back({named.name + (causal ? "_once_causal" : "_once"), named.problem});
            all.back().problem.keys_once = true;
            all.back().problem.causal = causal;
        }
    }
    std::erase_if(
        all, [](const NamedProblem &named) { return named.problem.keys_once && named.problem.branches.size() == 1; });
    return in_subject_dtypes(all);
}

std::vector<NamedProblem> in_subject_dtypes(const std::vector<NamedProblem> &problems) {
    std::vector<NamedProblem> all = with_dtypes(problems, subject_dtypes());
    std::erase_if(all, [](const NamedProblem &named) { return subject().refusal_of(named.problem) != nullptr; });
    return all;
}

std::vector<NamedProblem> some_patterns() {
    std::vector<NamedProblem> problems = patterns();
    std::erase_if(problems, [](const NamedProblem &named) {
        const auto is = [&](const char *name) { return named.name.starts_with(name); };
        return named.problem.dtype != ANNULUS_BFLOAT16 ||
               !(is("twelve_branches_") || is("dilations_2_3_5_causal") || is("hilbert_and_linear_") ||
                 is("hilbert_grouped_every_") || is("hilbert_alone_") || is("hilbert_of_whole_units_") ||
                 is("grouped_dilations_2_3_") || is("dim_192_grouped_") || is("whole_units_"));
    });
    return problems;
}

std::vector<NamedProblem> split_problems() {
    const Problem two = {
        .length = 20001, .heads = 8, .dim = 128, .branches = {{.segment = 200}, {.dilation = 8}, {.dilation = 16}}};
    Problem four = two, grouped = two, head_ranges = two;
    four.dim = 48;
    four.branches = {
        {.segment = 100}, {.segment = 400, .dilation = 2}, {.segment = 2000, .dilation = 8}, {.dilation = 32}};
    Problem causal = four, zero_keys = four, window = four, dim_192 = two;
    causal.causal = true;
    window.window = QueryWindow{3001, 12000};
    dim_192.dim = 192;
    zero_keys.zero_keys = true;
    grouped.kv_heads = 2;
    grouped.causal = true;
    // Head dimensions for which no kernel is made.
    Problem batches = four;
    batches.batch = 3;
    batches.length = 8000;
    batches.dim = 40;
    head_ranges.dim = 64;
    head_ranges.branches[1].first_head = 2;
    head_ranges.branches[1].head_count = 5;
    // In the first grid query 1 meets only key 1. In the second grid it does not meet it.
    Problem every = two;
    every.dim = 64;
    every.branches = {
        {.segment = 100, .dilation = 2, .phase = ANNULUS_PHASE_FIXED, .residue = 0, .query = ANNULUS_QUERY_EVERY},
        {.dilation = 8, .phase = ANNULUS_PHASE_FIXED, .residue = 1},
    };
    every.causal = true;
    const std::vector<NamedProblem> named = {{"two", two},
                                             {"four", four},
                                             {"four_causal", causal},
                                             {"four_zero_keys", zero_keys},
                                             {"four_window", window},
                                             {"dim_192", dim_192},
                                             {"grouped", grouped},
                                             {"head_ranges", head_ranges},
                                             {"batches", batches},
                                             {"every", every}};
    std::vector<NamedProblem> problems = with_dtypes(named, {ANNULUS_BFLOAT16});
    for (const NamedProblem &half : with_dtypes({named[0], named[2]}, {ANNULUS_FLOAT16}))
        problems.push_back(half);
    return problems;
}

std::vector<NamedProblem> problems_of_several_grids() {
    const Problem plain = {
        .length = 5001, .heads = 8, .dim = 128, .branches = {{.segment = 200}, {.dilation = 8}, {.dilation = 12}}};
    Problem dim_192 = plain, grouped = plain, batches = plain, three = plain;
    dim_192.dim = 192;
    grouped.kv_heads = 2;
    grouped.causal = true;
    batches.batch = 3;
    batches.dim = 40;
    batches.causal = true;
    three.dim = 64;
    three.branches.push_back({.dilation = 9});
    return with_dtypes(
        {{"plain", plain}, {"dim_192", dim_192}, {"grouped", grouped}, {"batches", batches}, {"three", three}},
        {ANNULUS_BFLOAT16});
}

} // namespace annulus::test
