// SPDX-License-Identifier: Apache-2.0
// A problem of attention in the tests: a pattern, sizes, a dtype and a layout.
#pragma once

#include "support/memory.hpp"
#include "support/tensors.hpp"

#include <annulus/annulus.h>

#include <array>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace annulus::test {

struct BranchSpec {
    std::int64_t segment = 0; // w; 0: the whole sequence
    std::int64_t dilation = 1;
    annulus_phase_rule phase = ANNULUS_PHASE_BLOCK;
    std::int64_t residue = 0;
    annulus_query_rule query = ANNULUS_QUERY_DILATED;
    annulus_order order = ANNULUS_ORDER_LINEAR;
    std::int64_t width = 0;
    std::int32_t first_head = 0;
    std::int32_t head_count = 0; // 0: all heads from first_head on
    annulus_branch_kind kind = ANNULUS_BRANCH_SEGMENTS;
    std::int64_t left = 0; // of a window; -1: unbounded
    std::int64_t right = 0;
    std::int64_t first_global = 0; // of global positions
    std::int64_t global_count = 0;
    bool global_queries = false;
};

// Returns a window that every query has.
inline BranchSpec window_spec(std::int64_t left, std::int64_t right, std::int64_t dilation = 1) {
    return {.dilation = dilation,
            .query = ANNULUS_QUERY_RESIDUE,
            .kind = ANNULUS_BRANCH_WINDOW,
            .left = left,
            .right = right};
}

inline BranchSpec global_spec(std::int64_t first, std::int64_t count, bool queries = false) {
    return {.kind = ANNULUS_BRANCH_GLOBAL, .first_global = first, .global_count = count, .global_queries = queries};
}

// Returns a window in which a head has the queries of its phase alone.
inline BranchSpec of_phases(BranchSpec window, annulus_phase_rule rule, std::int64_t residue = 0) {
    window.query = ANNULUS_QUERY_DILATED;
    window.phase = rule;
    window.residue = residue;
    return window;
}

// Returns the branch for `count` heads from head `first` on.
inline BranchSpec with_heads(BranchSpec branch, std::int32_t first, std::int32_t count) {
    branch.first_head = first;
    branch.head_count = count;
    return branch;
}

// The problem's heads are heads first, first + 1, … of `total` heads. If total is 0, the problem has all heads.
struct HeadShard {
    std::int32_t first = 0;
    std::int32_t total = 0;
};

struct QueryWindow {
    std::int64_t start = 0;
    std::int64_t length = 0;
};

// The sequences in annulus_call_options. Without starts they are a padded batch, without lengths packed sequences.
struct Sequences {
    std::vector<std::int64_t> starts, lengths;
};

// How backward writes a gradient.
struct GradientSpec {
    bool is_float32 = false; // for problems of a 16-bit dtype
    bool adds = false;
    bool operator==(const GradientSpec &) const = default;
};

struct Problem {
    std::int64_t batch = 1;
    std::int64_t length = 64;
    std::int32_t heads = 2;
    std::int32_t kv_heads = 0; // 0: equal to heads
    std::int32_t dim = 8;
    std::vector<BranchSpec> branches = {BranchSpec{}};
    bool causal = false;
    bool zero_keys = false;
    bool keys_once = false; // a key of several branches counts once
    std::optional<double> scale = {};
    std::optional<QueryWindow> window = {};
    std::optional<Sequences> sequences = {};
    Layout layout = Layout::rows;
    double spread = 1; // standard deviation of Q: the larger, the sharper the softmax
    annulus_dtype dtype = ANNULUS_FLOAT64;
    std::array<GradientSpec, 3> gradients = {}; // of Q, K and V
    HeadShard head_shard = {};

    std::int32_t kv() const { return kv_heads ? kv_heads : heads; }
    std::int32_t kv_head(std::int32_t head) const { return head / (heads / kv()); }
    std::int64_t query_start() const { return window ? window->start : 0; }
    annulus_dtype gradient_dtype(std::size_t i) const { return gradients[i].is_float32 ? ANNULUS_FLOAT32 : dtype; }
    std::int64_t query_length() const { return window ? window->length : length; }
    double scale_or_default() const;
    // Sizes of Q (and O, dQ), K (and V, dK, dV) and LSE in elements.
    std::size_t q_size() const { return batch * query_length() * heads * dim; }
    std::size_t kv_size() const { return batch * length * kv() * dim; }
    std::size_t lse_size() const { return batch * heads * query_length(); }
    // Returns the number of products in the definition, computed pair by pair.
    double work() const {
        return static_cast<double>(batch * heads * query_length()) * static_cast<double>(length * dim);
    }
};

// Writes C++ that makes the same problem, so that a failing problem can be added to the table.
std::ostream &operator<<(std::ostream &out, const Problem &problem);

struct ConfigDeleter {
    void operator()(annulus_config *config) const { annulus_config_destroy(config); }
};
struct ContextDeleter {
    void operator()(annulus_context *context) const { annulus_context_destroy(context); }
};
using Config = std::unique_ptr<annulus_config, ConfigDeleter>;
using Context = std::unique_ptr<annulus_context, ContextDeleter>;

// Throws with the library's message unless `status` is ok.
void check(annulus_status status);

Config make_config(const Problem &problem, annulus_engine engine);
Context make_context(const annulus_config *config, int threads, Memory &memory = host_memory());
// Returns the options of a call, which point into the problem's sequences.
annulus_call_options options_of(const Problem &problem);
annulus_problem sizes_of(const Problem &problem, const annulus_call_options *options = nullptr);

} // namespace annulus::test
