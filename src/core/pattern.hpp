// SPDX-License-Identifier: Apache-2.0
// Which keys a query attends to, independent of any problem: the contents of a config.
#pragma once

#include <annulus/config.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

struct Branch {
    std::int64_t segment_length = 0; // w; 0: the whole sequence
    std::int64_t dilation = 1;       // r
    std::int32_t first_head = 0;
    std::int32_t head_count = 0; // 0: all heads from first_head on
    annulus_phase_rule phase_rule = ANNULUS_PHASE_BLOCK;
    std::int64_t fixed_residue = 0;
    annulus_query_rule query_rule = ANNULUS_QUERY_DILATED;
    annulus_order order = ANNULUS_ORDER_LINEAR;
    std::int64_t grid_width = 0; // 0: automatic
    annulus_branch_kind kind = ANNULUS_BRANCH_SEGMENTS;
    std::int64_t left = 0, right = 0; // of a window branch, in steps of the dilation; -1: no limit
    std::int64_t first_global = 0;    // of a global branch
    std::int64_t global_count = 0;
    bool has_global_queries = false;
};

// The heads of a call are the heads first, first + 1, … of the `total` heads of a model, or all of them if total is 0.
// Branches number heads over the whole model.
struct HeadShard {
    std::int32_t first = 0, total = 0;
};

struct Pattern {
    std::vector<Branch> branches;
    HeadShard head_shard;
    annulus_padding_rule padding_rule = ANNULUS_PADDING_EXACT;
    annulus_key_rule key_rule = ANNULUS_KEY_EACH_BRANCH;
    bool causal = false;
    std::optional<double> scale; // empty: 1/sqrt(D)
};

// How a pattern is computed.
struct Execution {
    annulus_engine engine = ANNULUS_ENGINE_AUTO;
    bool allow_tf32 = false;
    annulus_exchange exchange = ANNULUS_EXCHANGE_AUTO;
    std::uint64_t workspace_limit = 0; // bytes; 0: the engine chooses
};

} // namespace annulus

// The definition of the public handle.
struct annulus_config {
    annulus::Pattern pattern;
    annulus::Execution execution;
};
