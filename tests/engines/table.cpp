// SPDX-License-Identifier: Apache-2.0
#include "engines/table.hpp"

#include <cstdlib>
#include <ostream>

namespace annulus::test {

std::ostream &operator<<(std::ostream &out, const NamedProblem &named) {
    return out << named.name << ": " << named.problem;
}

bool quick() {
    return std::getenv("ANNULUS_TEST_QUICK") != nullptr;
}

std::vector<annulus_dtype> dtypes_of_part(const std::vector<annulus_dtype> &all) {
    return quick() ? std::vector{all.back()} : all;
}

std::uint64_t sweep_seed(std::uint64_t usual) {
    const char *const text = std::getenv("ANNULUS_TEST_SEED");
    return text ? std::strtoull(text, nullptr, 10) : usual;
}

int sweep_size(int usual) {
    const char *const text = std::getenv("ANNULUS_TEST_PROBLEMS");
    return text ? std::atoi(text) : usual;
}

std::vector<NamedProblem> nested_problems() {
    const BranchSpec near = {.segment = 64}, middle = {.segment = 256, .dilation = 2},
                     far = {.segment = 1024, .dilation = 4};
    const auto with_query = [](BranchSpec branch, annulus_query_rule rule) {
        branch.query = rule;
        return branch;
    };
    BranchSpec residues = with_query(middle, ANNULUS_QUERY_RESIDUE), curve = with_query(far, ANNULUS_QUERY_EVERY);
    residues.first_head = 1;
    curve.order = ANNULUS_ORDER_HILBERT;
    std::vector<NamedProblem> problems;
    for (const bool causal : {false, true}) {
        const auto add = [&](const std::string &name, std::vector<BranchSpec> branches) {
            problems.push_back({name + (causal ? "_causal" : ""),
                                {.length = 1111,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .dim = 16,
                                 .branches = std::move(branches),
                                 .causal = causal}});
        };
        add("nested_like_longnet", {near, middle, far});
        add("nested_the_longest_first", {{}, middle, near});
        add("nested_twice_the_same", {middle, far, middle});
        add("nested_rules", {near, residues, with_query(far, ANNULUS_QUERY_EVERY), far});
        add("nested_along_a_curve", {curve, near, residues});
    }
    return problems;
}

std::vector<NamedProblem> with_keys_once(std::vector<NamedProblem> problems) {
    for (NamedProblem &named : problems)
        named.problem.keys_once = true;
    return problems;
}

std::vector<NamedProblem> with_both_key_rules(const std::vector<NamedProblem> &problems) {
    std::vector<NamedProblem> all = problems;
    for (NamedProblem named : with_keys_once(problems))
        if (named.problem.branches.size() > 1)
            all.push_back({"once_" + named.name, named.problem});
    return all;
}

std::vector<NamedProblem> with_dtypes(const std::vector<NamedProblem> &problems,
                                      const std::vector<annulus_dtype> &dtypes) {
    std::vector<NamedProblem> all;
    const std::size_t count = dtypes.size();
    for (std::size_t i = 0; i < problems.size(); ++i)
        for (std::size_t j = 0; j < count; ++j) {
            // Takes one dtype in turn. The turn is shifted, since problems that differ in one property come in turns,
            // too.
            if (quick() && j != (i + i / count) % count)
                continue;
            all.push_back(problems[i]);
            all.back().problem.dtype = dtypes[j];
            all.back().name += std::string("_") + annulus_dtype_name(dtypes[j]);
        }
    return all;
}

std::vector<NamedProblem> up_to(double most_work, std::vector<NamedProblem> problems) {
    std::erase_if(problems, [&](const NamedProblem &named) { return named.problem.work() > most_work; });
    return problems;
}

void add_with_causality(const std::string &name, Problem problem, std::vector<NamedProblem> &problems) {
    for (const bool causal : {false, true}) {
        problem.causal = causal;
        problems.push_back({name + (causal ? "_causal" : ""), problem});
    }
}

std::vector<NamedProblem> rule_combinations() {
    static const char *const phases[] = {"", "block", "interleave", "fixed"};
    static const char *const queries[] = {"", "dilated", "residue", "every"};
    std::vector<NamedProblem> problems;
    for (const auto phase : {ANNULUS_PHASE_BLOCK, ANNULUS_PHASE_INTERLEAVE, ANNULUS_PHASE_FIXED})
        for (const auto query : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY})
            for (const bool hilbert : {false, true})
                for (const bool zero_keys : {false, true})
                    for (const bool causal : {false, true}) {
                        // Five heads, dilations 3 and 4, segments of 20 and 48 in 107 positions: no number divides
                        // another.
                        BranchSpec small = {.segment = 20, .dilation = 3, .phase = phase, .query = query};
                        BranchSpec large = {.segment = 48, .dilation = 4, .phase = phase, .query = query};
                        small.residue = phase == ANNULUS_PHASE_FIXED ? 2 : 0;
                        large.residue = phase == ANNULUS_PHASE_FIXED ? 7 : 0;
                        if (hilbert) {
                            small.order = large.order = ANNULUS_ORDER_HILBERT;
                            large.width = 6;
                        }
                        std::string name = std::string(phases[phase]) + "_" + queries[query];
                        name += hilbert ? "_hilbert" : "_linear";
                        name += zero_keys ? "_zero" : "_exact";
                        name += causal ? "_causal" : "_all";
                        problems.push_back({name,
                                            {.length = 107,
                                             .heads = 5,
                                             .dim = 16,
                                             .branches = {small, large},
                                             .causal = causal,
                                             .zero_keys = zero_keys}});
                    }
    return problems;
}

static std::vector<NamedProblem> sizes() {
    std::vector<NamedProblem> problems;
    const std::vector<BranchSpec> branches = {{.segment = 64}, {.dilation = 3}};
    for (const std::int64_t length : {1, 2, 7, 63, 64, 65, 127, 128, 129, 257})
        for (const bool causal : {false, true})
            problems.push_back({"length_" + std::to_string(length) + (causal ? "_causal" : ""),
                                {.length = length, .heads = 3, .dim = 16, .branches = branches, .causal = causal}});
    for (const std::int32_t dim : {8, 24, 40, 48, 64, 72, 128, 136, 256})
        problems.push_back(
            {"dim_" + std::to_string(dim), {.length = 131, .dim = dim, .branches = branches, .causal = dim % 16 == 0}});
    return problems;
}

static std::vector<NamedProblem> patterns() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    constexpr auto interleave = ANNULUS_PHASE_INTERLEAVE;
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    return {
        {"segment_of_one", {.branches = {{.segment = 1}}}},
        {"segment_of_one_dilated", {.heads = 3, .branches = {{.segment = 1, .dilation = 2}}, .zero_keys = true}},
        {"segment_longer_than_sequence", {.length = 50, .branches = {{.segment = 1000, .dilation = 3}}}},
        {"segment_beyond_any_sequence",
         {.length = 50, .branches = {{.segment = INT64_MAX, .dilation = 3}}, .causal = true}},
        {"segment_longer_than_sequence_zero_keys",
         {.length = 50, .branches = {{.segment = 1000, .dilation = 3}}, .zero_keys = true}},
        {"dilation_longer_than_segment",
         {.length = 90, .heads = 7, .branches = {{.segment = 5, .dilation = 8, .phase = interleave}}}},
        {"dilation_longer_than_segment_every_query",
         {.length = 90,
          .heads = 7,
          .branches = {{.segment = 5, .dilation = 8, .phase = interleave, .query = every}},
          .zero_keys = true}},
        {"dilation_longer_than_sequence", {.length = 10, .heads = 4, .branches = {{.dilation = 64, .query = every}}}},
        {"dilation_beyond_any_sequence",
         {.length = 10, .heads = 4, .branches = {{.dilation = INT64_MAX}}, .zero_keys = true}},
        {"empty_classes_only",
         {.length = 3, .heads = 8, .branches = {{.dilation = 8, .query = every}}, .causal = true}},
        {"most_queries_without_keys", {.length = 200, .branches = {{.segment = 100, .dilation = 16}}}},
        {"same_branch_twice", {.length = 77, .branches = {{.segment = 32}, {.segment = 32}}, .causal = true}},
        {"eight_branches",
         {.length = 300,
          .heads = 6,
          .branches = {{.segment = 8},
                       {.segment = 16, .dilation = 2},
                       {.segment = 32, .dilation = 3},
                       {.segment = 64, .dilation = 4, .query = residue},
                       {.segment = 100, .dilation = 6},
                       {.segment = 128, .dilation = 8, .query = every},
                       {.segment = 256, .dilation = 12, .phase = interleave},
                       {.dilation = 16}},
          .causal = true}},
        {"longnet_series_1000",
         {.length = 1000,
          .heads = 4,
          .dim = 64,
          .branches = {{.segment = 128}, {.segment = 256, .dilation = 2}, {.segment = 512, .dilation = 4}},
          .causal = true}},
        {"dense_1000", {.length = 1000, .heads = 1, .dim = 64}},
        {"dense_causal_1000", {.length = 1000, .heads = 1, .dim = 128, .causal = true}},
        {"residue_1000", {.length = 1000, .heads = 2, .dim = 32, .branches = {{.dilation = 5, .query = residue}}}},
        {"every_causal_1000",
         {.length = 1000,
          .heads = 3,
          .dim = 32,
          .branches = {{.segment = 700, .dilation = 7, .phase = interleave, .query = every}},
          .causal = true}},
        {"hilbert_image",
         {.length = 24 * 36, .heads = 4, .dim = 16, .branches = {{.dilation = 4, .order = hilbert, .width = 36}}}},
        {"hilbert_image_causal",
         {.length = 24 * 36,
          .heads = 4,
          .dim = 16,
          .branches = {{.segment = 16}, {.dilation = 4, .query = residue, .order = hilbert, .width = 24}},
          .causal = true}},
        {"hilbert_prime_length", {.length = 127, .heads = 4, .branches = {{.dilation = 4, .order = hilbert}}}},
        {"hilbert_one_column", {.length = 40, .branches = {{.dilation = 2, .order = hilbert, .width = 1}}}},
        {"hilbert_width_fits_last_segment",
         {.length = 150, .branches = {{.segment = 60, .dilation = 2, .order = hilbert, .width = 10}}}},
        {"sharp_softmax", {.length = 150, .dim = 64, .branches = {{.segment = 70}, {.dilation = 2}}, .spread = 6}},
        {"zero_scale", {.length = 70, .branches = {{.segment = 32}}, .scale = 0.0}},
        {"negative_scale", {.length = 70, .branches = {{.segment = 32}}, .causal = true, .scale = -0.5}},
        {"large_scale_zero_keys",
         {.length = 70, .dim = 16, .branches = {{.segment = 32, .dilation = 3}}, .zero_keys = true, .scale = 1.5}},
    };
}

static std::vector<NamedProblem> heads_and_layouts() {
    const std::vector<BranchSpec> branches = {{.segment = 64}, {.dilation = 3}};
    return {
        {"head_ranges",
         {.length = 129,
          .heads = 7,
          .branches = {{.segment = 16, .first_head = 2, .head_count = 3},
                       {.segment = 50, .dilation = 4, .first_head = 0, .head_count = 5},
                       {.dilation = 2, .first_head = 6, .head_count = 1}}}},
        {"heads_from_one_on",
         {.length = 100,
          .heads = 7,
          .branches = {{.segment = 16, .first_head = 4},
                       {.segment = 50, .dilation = 4, .first_head = 1},
                       {.dilation = 2, .query = ANNULUS_QUERY_EVERY, .first_head = 6}}}},
        {"heads_without_branch",
         {.length = 65,
          .heads = 6,
          .branches = {{.segment = 16, .first_head = 1, .head_count = 2},
                       {.segment = 32, .first_head = 4, .head_count = 1}},
          .causal = true}},
        {"head_groups",
         {.length = 200,
          .heads = 8,
          .branches = {{.segment = 32, .phase = ANNULUS_PHASE_FIXED, .head_count = 3},
                       {.segment = 64,
                        .dilation = 2,
                        .phase = ANNULUS_PHASE_FIXED,
                        .residue = 1,
                        .first_head = 3,
                        .head_count = 3},
                       {.segment = 128,
                        .dilation = 4,
                        .phase = ANNULUS_PHASE_FIXED,
                        .residue = 2,
                        .first_head = 6,
                        .head_count = 2}}}},
        {"grouped_kv", {.length = 129, .heads = 8, .kv_heads = 2, .dim = 16, .branches = branches}},
        {"one_kv_head", {.length = 129, .heads = 6, .kv_heads = 1, .dim = 16, .branches = branches, .causal = true}},
        {"grouped_kv_windows_of_phases",
         {.batch = 2,
          .length = 129,
          .heads = 8,
          .kv_heads = 4,
          .branches = {{.segment = 60, .dilation = 8, .phase = ANNULUS_PHASE_INTERLEAVE, .query = ANNULUS_QUERY_EVERY}},
          .zero_keys = true}},
        {"many_heads_and_batches",
         {.batch = 9, .length = 17, .heads = 30, .branches = {{.segment = 8}, {.dilation = 2}}}},
        {"heads_first", {.batch = 2, .length = 129, .dim = 40, .branches = branches, .layout = Layout::heads_first}},
        {"gaps", {.batch = 2, .length = 129, .dim = 40, .branches = branches, .causal = true, .layout = Layout::gaps}},
        {"gaps_grouped_kv",
         {.batch = 2, .length = 70, .heads = 6, .kv_heads = 2, .branches = branches, .layout = Layout::gaps}},
        {"packed", {.batch = 2, .length = 129, .heads = 3, .dim = 48, .branches = branches, .layout = Layout::packed}},
        {"packed_grouped_kv_causal",
         {.length = 129, .heads = 6, .kv_heads = 3, .branches = branches, .causal = true, .layout = Layout::packed}},
        {"packed_hilbert",
         {.length = 144,
          .heads = 4,
          .branches = {{.dilation = 4, .order = ANNULUS_ORDER_HILBERT, .width = 12}},
          .layout = Layout::packed}},
    };
}

static std::vector<NamedProblem> windows() {
    const std::vector<BranchSpec> branches = {{.segment = 48}, {.segment = 100, .dilation = 3}, {.dilation = 4}};
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    const auto window = [&](std::int64_t start, std::int64_t length, bool causal) {
        return Problem{.batch = 2,
                       .length = 257,
                       .heads = 4,
                       .kv_heads = 2,
                       .dim = 16,
                       .branches = branches,
                       .causal = causal,
                       .window = QueryWindow{start, length}};
    };
    return {
        {"window_last_token", window(256, 1, true)},
        {"window_first_token", window(0, 1, true)},
        {"window_middle", window(50, 100, false)},
        {"window_middle_causal", window(47, 55, true)},
        {"window_whole", window(0, 257, true)},
        // One query more than a query tile of the CPU engine in backward.
        {"window_of_a_query_more_than_a_tile",
         {.length = 1100, .heads = 1, .dim = 8, .branches = {{.dilation = 2}}, .window = QueryWindow{60, 1025}}},
        {"window_end", window(200, 57, false)},
        {"window_hilbert",
         {.length = 144,
          .heads = 3,
          .branches = {{.segment = 72, .dilation = 3, .query = ANNULUS_QUERY_RESIDUE, .order = hilbert},
                       {.dilation = 2, .order = hilbert, .width = 16}},
          .window = QueryWindow{30, 75}}},
        {"window_hilbert_causal_every",
         {.length = 144,
          .heads = 3,
          .branches = {{.dilation = 3, .query = ANNULUS_QUERY_EVERY, .order = hilbert, .width = 16}},
          .causal = true,
          .window = QueryWindow{30, 75}}},
        {"window_zero_keys",
         {.length = 107,
          .heads = 5,
          .branches = {{.segment = 20, .dilation = 3}},
          .zero_keys = true,
          .window = QueryWindow{90, 17}}},
        {"window_gaps",
         {.batch = 2,
          .length = 107,
          .heads = 4,
          .branches = branches,
          .causal = true,
          .window = QueryWindow{33, 40},
          .layout = Layout::gaps}},
    };
}

Problem gigapath(std::int64_t tiles) {
    return {.length = tiles + 1,
            .heads = 16,
            .dim = 48,
            .branches = {{.segment = 1024},
                         {.segment = 5792, .dilation = 2},
                         {.segment = 32768, .dilation = 4},
                         {.segment = 185363, .dilation = 8},
                         {.segment = 1048576, .dilation = 16}},
            .zero_keys = true};
}

Problem mixed_problem(annulus_dtype dtype) {
    return {.batch = 2,
            .length = 331,
            .heads = 6,
            .kv_heads = 3,
            .dim = 24,
            .branches = {{.segment = 64},
                         {.segment = 150, .dilation = 3, .query = ANNULUS_QUERY_EVERY},
                         {.dilation = 4, .query = ANNULUS_QUERY_RESIDUE, .order = ANNULUS_ORDER_HILBERT}},
            .causal = true,
            .dtype = dtype};
}

std::vector<NamedProblem> named_problems() {
    std::vector<NamedProblem> problems;
    for (const auto &part : {sizes(), patterns(), heads_and_layouts(), windows()})
        problems.insert(problems.end(), part.begin(), part.end());
    problems.push_back({"gigapath_300_tiles", gigapath(300)});
    problems.push_back({"gigapath_1100_tiles", gigapath(1100)});
    return problems;
}

} // namespace annulus::test
