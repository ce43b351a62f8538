// SPDX-License-Identifier: Apache-2.0
// Converts a test's problem to the types of the library's core.
#pragma once

#include "core/plan.hpp"
#include "support/problem.hpp"

namespace annulus::test {

inline Pattern pattern_of(const Problem &problem) {
    Pattern pattern;
    for (const BranchSpec &spec : problem.branches)
        pattern.branches.push_back({spec.segment, spec.dilation, spec.first_head, spec.head_count, spec.phase,
                                    spec.residue, spec.query, spec.order, spec.width, spec.kind, spec.left, spec.right,
                                    spec.first_global, spec.global_count, spec.global_queries});
    pattern.padding_rule = problem.zero_keys ? ANNULUS_PADDING_ZERO_KEYS : ANNULUS_PADDING_EXACT;
    pattern.key_rule = problem.keys_once ? ANNULUS_KEY_ONCE : ANNULUS_KEY_EACH_BRANCH;
    pattern.causal = problem.causal;
    pattern.scale = problem.scale;
    pattern.head_shard = {problem.head_shard.first, problem.head_shard.total};
    return pattern;
}

inline annulus::Problem plan_problem_of(const Problem &problem) {
    annulus::Problem sizes;
    sizes.dtype = problem.dtype;
    sizes.batch = problem.batch;
    sizes.sequence_length = problem.length;
    sizes.heads = problem.heads;
    sizes.kv_heads = problem.kv();
    sizes.head_dim = problem.dim;
    sizes.queries = {problem.query_start(), problem.query_length()};
    sizes.keys = {0, problem.length};
    return sizes;
}

} // namespace annulus::test
