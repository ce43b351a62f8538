// SPDX-License-Identifier: Apache-2.0
#include "support/problem.hpp"

#include <cmath>
#include <ostream>
#include <stdexcept>

namespace annulus::test {

double Problem::scale_or_default() const {
    return scale ? *scale : 1 / std::sqrt(static_cast<double>(dim));
}

static void print_branch(std::ostream &out, const BranchSpec &branch) {
    static const char *const phases[] = {"ANNULUS_PHASE_BLOCK", "ANNULUS_PHASE_INTERLEAVE", "ANNULUS_PHASE_FIXED"};
    static const char *const queries[] = {"ANNULUS_QUERY_DILATED", "ANNULUS_QUERY_RESIDUE", "ANNULUS_QUERY_EVERY"};
    static const char *const orders[] = {"ANNULUS_ORDER_LINEAR", "ANNULUS_ORDER_HILBERT"};
    static const char *const kinds[] = {"ANNULUS_BRANCH_SEGMENTS", "ANNULUS_BRANCH_WINDOW", "ANNULUS_BRANCH_GLOBAL"};
    out << "{.segment = " << branch.segment << ", .dilation = " << branch.dilation
        << ", .phase = " << phases[branch.phase] << ", .residue = " << branch.residue
        << ", .query = " << queries[branch.query] << ", .order = " << orders[branch.order]
        << ", .width = " << branch.width << ", .first_head = " << branch.first_head
        << ", .head_count = " << branch.head_count << ", .kind = " << kinds[branch.kind] << ", .left = " << branch.left
        << ", .right = " << branch.right << ", .first_global = " << branch.first_global
        << ", .global_count = " << branch.global_count << ", .global_queries = " << branch.global_queries << "}";
}

static void print_numbers(std::ostream &out, const std::vector<std::int64_t> &numbers) {
    out << "{";
    for (std::size_t i = 0; i < numbers.size(); ++i)
        out << (i ? ", " : "") << numbers[i];
    out << "}";
}

std::ostream &operator<<(std::ostream &out, const Problem &problem) {
    static const char *const layouts[] = {"rows", "heads_first", "gaps", "packed"};
    static const char *const dtypes[] = {"", "ANNULUS_FLOAT64", "ANNULUS_FLOAT32", "ANNULUS_BFLOAT16",
                                         "ANNULUS_FLOAT16"};
    out << "{.batch = " << problem.batch << ", .length = " << problem.length << ", .heads = " << problem.heads
        << ", .kv_heads = " << problem.kv_heads << ", .dim = " << problem.dim << ", .branches = {";
    const char *separator = "";
    for (const BranchSpec &branch : problem.branches) {
        out << separator;
        print_branch(out, branch);
        separator = ", ";
    }
    out << std::boolalpha << "}, .causal = " << problem.causal << ", .zero_keys = " << problem.zero_keys
        << ", .keys_once = " << problem.keys_once;
    if (problem.scale)
        out << ", .scale = " << *problem.scale;
    if (problem.window)
        out << ", .window = QueryWindow{" << problem.window->start << ", " << problem.window->length << "}";
    if (problem.sequences) {
        out << ", .sequences = Sequences{";
        print_numbers(out, problem.sequences->starts);
        out << ", ";
        print_numbers(out, problem.sequences->lengths);
        out << "}";
    }
    if (problem.gradients != Problem{}.gradients) {
        out << ", .gradients = {{";
        for (const GradientSpec &gradient : problem.gradients)
            out << "{" << gradient.is_float32 << ", " << gradient.adds << "}, ";
        out << "}}";
    }
    return out << ", .layout = Layout::" << layouts[static_cast<int>(problem.layout)]
               << ", .spread = " << problem.spread << ", .dtype = " << dtypes[problem.dtype] << ", .head_shard = {"
               << problem.head_shard.first << ", " << problem.head_shard.total << "}}";
}

void check(annulus_status status) {
    if (status != ANNULUS_OK)
        throw std::runtime_error(std::string(annulus_status_name(status)) + ": " + annulus_last_error());
}

Config make_config(const Problem &problem, annulus_engine engine) {
    annulus_config *raw = nullptr;
    check(annulus_config_create(&raw));
    Config config(raw);
    for (const BranchSpec &spec : problem.branches) {
        annulus_branch branch = ANNULUS_BRANCH_INIT(spec.segment, spec.dilation);
        branch.residue = spec.residue;
        branch.grid_width = spec.width;
        branch.first_head = spec.first_head;
        branch.head_count = spec.head_count;
        branch.phase_rule = spec.phase;
        branch.query_rule = spec.query;
        branch.order = spec.order;
        branch.kind = spec.kind;
        branch.left = spec.left;
        branch.right = spec.right;
        branch.first_global = spec.first_global;
        branch.global_count = spec.global_count;
        branch.global_queries = spec.global_queries;
        check(annulus_config_add_branch(raw, &branch, nullptr));
    }
    check(annulus_config_set_causal(raw, problem.causal));
    check(annulus_config_set_padding_rule(raw, problem.zero_keys ? ANNULUS_PADDING_ZERO_KEYS : ANNULUS_PADDING_EXACT));
    check(annulus_config_set_key_rule(raw, problem.keys_once ? ANNULUS_KEY_ONCE : ANNULUS_KEY_EACH_BRANCH));
    check(annulus_config_set_head_shard(raw, problem.head_shard.first, problem.head_shard.total));
    if (problem.scale)
        check(annulus_config_set_scale(raw, *problem.scale));
    check(annulus_config_set_engine(raw, engine));
    return config;
}

Context make_context(const annulus_config *config, int threads, Memory &memory) {
    annulus_context *raw = nullptr;
    check(annulus_context_create(&raw, memory.device(), memory.index()));
    Context context(raw);
    check(annulus_context_set_stream(raw, memory.stream()));
    check(annulus_context_set_config(raw, config));
    check(annulus_context_set_threads(raw, threads));
    return context;
}

annulus_call_options options_of(const Problem &problem) {
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    if (problem.window) {
        options.flags = ANNULUS_CALL_QUERY_WINDOW;
        options.query_start = problem.query_start();
    }
    if (problem.sequences) {
        const auto &[starts, lengths] = *problem.sequences;
        options.sequence_count = static_cast<std::int64_t>(starts.empty() ? lengths.size() : starts.size() - 1);
        options.sequence_starts = starts.empty() ? nullptr : starts.data();
        options.sequence_lengths = lengths.empty() ? nullptr : lengths.data();
    }
    return options;
}

annulus_problem sizes_of(const Problem &problem, const annulus_call_options *options) {
    annulus_problem sizes = ANNULUS_PROBLEM_INIT;
    sizes.dtype = problem.dtype;
    sizes.heads = problem.heads;
    sizes.kv_heads = problem.kv();
    sizes.head_dim = problem.dim;
    sizes.batch = problem.batch;
    sizes.sequence_length = problem.length;
    if (problem.window && !options)
        throw std::logic_error("the sizes of a query window need the call's options");
    sizes.query_length = problem.query_length();
    sizes.options = options;
    for (const GradientSpec &gradient : problem.gradients)
        if (gradient.is_float32)
            sizes.gradient_dtype = ANNULUS_FLOAT32;
    return sizes;
}

} // namespace annulus::test
