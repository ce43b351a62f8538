// SPDX-License-Identifier: Apache-2.0
// annulus/config.h: checks of every value on its own. What depends on a problem is checked where a plan is made.
#include <annulus/config.h>

#include "capi/guard.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"
#include "core/pattern.hpp"
#include "engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace annulus;

namespace {

Branch make_branch(std::int64_t segment_length, std::int64_t dilation) {
    Branch branch;
    branch.segment_length = segment_length;
    branch.dilation = dilation;
    return branch;
}

// More branches than any model has, but so few that a mistaken count costs little memory and time.
constexpr std::int32_t max_branches = 65536;

std::int32_t branch_count(const annulus_config &config) {
    return static_cast<std::int32_t>(config.pattern.branches.size());
}

// Appends all branches, or none if memory runs out or the limit is passed.
void append(annulus_config &config, const std::vector<Branch> &added) {
    std::vector<Branch> &branches = config.pattern.branches;
    if (branches.size() + added.size() > max_branches)
        throw Error(ANNULUS_ERROR_ARGUMENT, "config has %zu branches and is to get %zu more; it may have %d",
                    branches.size(), added.size(), max_branches);
    branches.insert(branches.end(), added.begin(), added.end());
}

template <class Branches> auto &branch_at(Branches &branches, std::int32_t index) {
    if (index < 0 || static_cast<std::size_t>(index) >= branches.size())
        throw Error(ANNULUS_ERROR_ARGUMENT, "index is %d; it must be at least 0 and below the number of branches, %zu",
                    index, branches.size());
    return branches[static_cast<std::size_t>(index)];
}

annulus_branch read_branch(const annulus_branch *branch) {
    // A caller need not set the padding behind the last field of the first version, `order`, so no field may lie there.
    constexpr std::size_t first_size = sizeof(std::size_t) + 4 * sizeof(std::int64_t) + 6 * sizeof(std::int32_t);
    static_assert(offsetof(annulus_branch, order) < first_size && offsetof(annulus_branch, left) == first_size);
    return read_sized("branch", branch, &annulus_branch::order);
}

const char *kind_name(annulus_branch_kind kind) {
    return kind == ANNULUS_BRANCH_WINDOW ? "window" : kind == ANNULUS_BRANCH_GLOBAL ? "global" : "segments";
}

// Checks fields that only branches of kind `of` have.
void check_fields_of(annulus_branch_kind of, annulus_branch_kind kind,
                     std::initializer_list<std::pair<const char *, std::int64_t>> fields) {
    for (const auto &[name, value] : fields)
        if (kind != of && value != 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %lld; it must be 0 for a branch of kind %s", name,
                        static_cast<long long>(value), kind_name(kind));
}

// Checks what a branch that has no segments may have.
void check_without_segments(const annulus_branch &given) {
    const char *const kind = kind_name(given.kind);
    check_fields_of(ANNULUS_BRANCH_SEGMENTS, given.kind, {{"segment_length", given.segment_length}});
    if (given.order != ANNULUS_ORDER_LINEAR)
        throw Error(ANNULUS_ERROR_ARGUMENT, "order is hilbert; it must be linear for a branch of kind %s", kind);
    if (given.kind == ANNULUS_BRANCH_GLOBAL) {
        if (given.dilation != 1)
            throw Error(ANNULUS_ERROR_ARGUMENT, "dilation is %lld; it must be 1 for a branch of kind global",
                        static_cast<long long>(given.dilation));
        constexpr std::int64_t max = std::numeric_limits<std::int64_t>::max();
        check_between("first_global", given.first_global, 0, max - 1);
        check_between("global_count", given.global_count, 1, max - given.first_global);
        check_between("global_queries", given.global_queries, 0, 1);
        return;
    }
    check_at_least("left", given.left, -1);
    check_at_least("right", given.right, -1);
    if (given.query_rule == ANNULUS_QUERY_EVERY)
        throw Error(ANNULUS_ERROR_ARGUMENT, "query_rule is every; it must be residue or dilated for a branch of kind "
                                            "window");
}

Branch checked_branch(const annulus_branch *branch) {
    const annulus_branch given = read_branch(branch);
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    check_at_least("segment_length", given.segment_length, 0);
    check_at_least("dilation", given.dilation, 1);
    check_between("first_head", given.first_head, 0, most - 1);
    check_between("head_count", given.head_count, 0, most - given.first_head);
    check_enum("phase_rule", given.phase_rule);
    check_enum("query_rule", given.query_rule);
    check_enum("order", given.order);
    check_enum("kind", given.kind);
    check_fields_of(ANNULUS_BRANCH_WINDOW, given.kind, {{"left", given.left}, {"right", given.right}});
    check_fields_of(ANNULUS_BRANCH_GLOBAL, given.kind,
                    {{"first_global", given.first_global},
                     {"global_count", given.global_count},
                     {"global_queries", given.global_queries}});
    if (given.kind != ANNULUS_BRANCH_SEGMENTS)
        check_without_segments(given);
    check_at_least("residue", given.residue, 0);
    if (given.phase_rule != ANNULUS_PHASE_FIXED && given.residue != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "residue is %lld; it must be 0 where the phase rule is not fixed",
                    static_cast<long long>(given.residue));
    check_at_least("grid_width", given.grid_width, 0);
    if (given.order == ANNULUS_ORDER_LINEAR && given.grid_width != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "grid_width is %lld; it must be 0 in the linear order",
                    static_cast<long long>(given.grid_width));
    // If the segment is the whole sequence (length 0), the width is checked where a plan is made.
    if (given.grid_width != 0 && given.segment_length % given.grid_width != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "grid_width is %lld; it must be 0 or divide the segment length %lld",
                    static_cast<long long>(given.grid_width), static_cast<long long>(given.segment_length));
    return {.segment_length = given.segment_length,
            .dilation = given.dilation,
            .first_head = given.first_head,
            .head_count = given.head_count,
            .phase_rule = given.phase_rule,
            .fixed_residue = given.residue,
            .query_rule = given.query_rule,
            .order = given.order,
            .grid_width = given.grid_width,
            .kind = given.kind,
            .left = given.left,
            .right = given.right,
            .first_global = given.first_global,
            .global_count = given.global_count,
            .has_global_queries = given.global_queries != 0};
}

void check_entry(const char *array, std::int32_t index, std::int64_t value, std::int64_t least) {
    if (value < least)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s[%d] is %lld; it must be at least %lld", array, index,
                    static_cast<long long>(value), static_cast<long long>(least));
}

struct PresetBranch {
    std::int64_t segment_length, dilation;
};

// A published model's branches, and the rules that its weights were trained with.
struct Preset {
    const char *name;
    std::span<const PresetBranch> branches;
    annulus_padding_rule padding_rule;
    annulus_key_rule key_rule;
    bool causal;
};

constexpr PresetBranch gigapath[] = {{1024, 1}, {5792, 2}, {32768, 4}, {185363, 8}, {1048576, 16}};
constexpr Preset presets[] = {{"gigapath", gigapath, ANNULUS_PADDING_ZERO_KEYS, ANNULUS_KEY_EACH_BRANCH, false}};

const Preset &find_preset(const char *name) {
    check_not_null("name", name);
    std::string names;
    for (const Preset &preset : presets) {
        if (std::string_view(name) == preset.name)
            return preset;
        names.append(names.empty() ? "" : ", ").append(preset.name);
    }
    throw Error(ANNULUS_ERROR_ARGUMENT, "name is \"%s\"; it must be one of the presets: %s", shown_text(name).c_str(),
                names.c_str());
}

// Runs a getter: writes value(config) to *result.
template <class T, class Value>
annulus_status get(const annulus_config *config, const char *name, T *result, Value value) {
    return guard([&] {
        const annulus_config &from = required(config, "config");
        required(result, name) = value(from);
    });
}

bool check_flag(const char *name, int value) {
    check_between(name, value, 0, 1);
    return value == 1;
}

} // namespace

const char *annulus_engine_name(annulus_engine engine) {
    return engine_name(engine);
}

annulus_status annulus_config_create(annulus_config **config) {
    return guard([&] {
        required(config, "config");
        *config = new annulus_config;
    });
}

annulus_status annulus_config_copy(annulus_config **copy, const annulus_config *config) {
    return guard([&] {
        required(copy, "copy");
        *copy = new annulus_config(required(config, "config"));
    });
}

void annulus_config_destroy(annulus_config *config) {
    delete config;
}

annulus_status annulus_config_add_branch(annulus_config *config, const annulus_branch *branch, int32_t *index) {
    return guard([&] {
        required(config, "config");
        append(*config, {checked_branch(branch)});
        if (index)
            *index = branch_count(*config) - 1;
    });
}

annulus_status annulus_config_set_branch(annulus_config *config, int32_t index, const annulus_branch *branch) {
    return guard([&] {
        Branch &target = branch_at(required(config, "config").pattern.branches, index);
        target = checked_branch(branch);
    });
}

annulus_status annulus_config_get_branch(const annulus_config *config, int32_t index, annulus_branch *branch) {
    return guard([&] {
        const Branch &found = branch_at(required(config, "config").pattern.branches, index);
        annulus_branch result = read_branch(branch);
        // Without the field `kind` another kind would look like segments as long as the sequence.
        constexpr std::size_t size_with_kind = offsetof(annulus_branch, kind) + sizeof result.kind;
        if (found.kind != ANNULUS_BRANCH_SEGMENTS && branch->size < size_with_kind)
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "branch %d is of kind %s; size of branch is %zu, and must be at least %zu to hold the kind",
                        index, kind_name(found.kind), branch->size, size_with_kind);
        result.segment_length = found.segment_length;
        result.dilation = found.dilation;
        result.residue = found.fixed_residue;
        result.grid_width = found.grid_width;
        result.first_head = found.first_head;
        result.head_count = found.head_count;
        result.phase_rule = found.phase_rule;
        result.query_rule = found.query_rule;
        result.order = found.order;
        result.left = found.left;
        result.right = found.right;
        result.first_global = found.first_global;
        result.global_count = found.global_count;
        result.kind = found.kind;
        result.global_queries = found.has_global_queries;
        write_sized(branch, result);
    });
}

annulus_status annulus_config_branch_count(const annulus_config *config, int32_t *count) {
    return get(config, "count", count, [](const annulus_config &from) { return branch_count(from); });
}

annulus_status annulus_config_set_padding_rule(annulus_config *config, annulus_padding_rule rule) {
    return guard([&] {
        required(config, "config");
        check_enum("rule", rule);
        config->pattern.padding_rule = rule;
    });
}

annulus_status annulus_config_get_padding_rule(const annulus_config *config, annulus_padding_rule *rule) {
    return get(config, "rule", rule, [](const annulus_config &from) { return from.pattern.padding_rule; });
}

annulus_status annulus_config_set_key_rule(annulus_config *config, annulus_key_rule rule) {
    return guard([&] {
        required(config, "config");
        check_enum("rule", rule);
        config->pattern.key_rule = rule;
    });
}

annulus_status annulus_config_get_key_rule(const annulus_config *config, annulus_key_rule *rule) {
    return get(config, "rule", rule, [](const annulus_config &from) { return from.pattern.key_rule; });
}

annulus_status annulus_config_set_head_shard(annulus_config *config, int32_t first, int32_t total) {
    return guard([&] {
        required(config, "config");
        check_at_least("total", total, 0);
        check_between("first", first, 0, std::max(total - 1, 0));
        config->pattern.head_shard = {first, total};
    });
}

annulus_status annulus_config_get_head_shard(const annulus_config *config, int32_t *first, int32_t *total) {
    return guard([&] {
        const HeadShard &shard = required(config, "config").pattern.head_shard;
        required(first, "first");
        required(total, "total");
        *first = shard.first;
        *total = shard.total;
    });
}

annulus_status annulus_config_set_causal(annulus_config *config, int causal) {
    return guard([&] { required(config, "config").pattern.causal = check_flag("causal", causal); });
}

annulus_status annulus_config_get_causal(const annulus_config *config, int *causal) {
    return get(config, "causal", causal, [](const annulus_config &from) { return from.pattern.causal; });
}

annulus_status annulus_config_set_scale(annulus_config *config, double scale) {
    return guard([&] {
        required(config, "config");
        const double magnitude = std::fabs(scale);
        if (magnitude != 0 && !(magnitude >= 1e-36 && magnitude <= 1e36))
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "scale is %g; it must be 0 or of a magnitude from 1e-36 to 1e36, as float32 can hold it",
                        scale);
        config->pattern.scale = scale;
    });
}

annulus_status annulus_config_unset_scale(annulus_config *config) {
    return guard([&] { required(config, "config").pattern.scale.reset(); });
}

annulus_status annulus_config_get_scale(const annulus_config *config, double *scale) {
    return get(config, "scale", scale, [](const annulus_config &from) {
        return from.pattern.scale.value_or(std::numeric_limits<double>::quiet_NaN());
    });
}

annulus_status annulus_config_set_engine(annulus_config *config, annulus_engine engine) {
    return guard([&] {
        required(config, "config");
        check_enum("engine", engine);
        config->execution.engine = engine;
    });
}

annulus_status annulus_config_get_engine(const annulus_config *config, annulus_engine *engine) {
    return get(config, "engine", engine, [](const annulus_config &from) { return from.execution.engine; });
}

annulus_status annulus_config_set_allow_tf32(annulus_config *config, int allow) {
    return guard([&] { required(config, "config").execution.allow_tf32 = check_flag("allow", allow); });
}

annulus_status annulus_config_get_allow_tf32(const annulus_config *config, int *allow) {
    return get(config, "allow", allow, [](const annulus_config &from) { return from.execution.allow_tf32; });
}

annulus_status annulus_config_set_exchange(annulus_config *config, annulus_exchange exchange) {
    return guard([&] {
        required(config, "config");
        check_enum("exchange", exchange);
        config->execution.exchange = exchange;
    });
}

annulus_status annulus_config_get_exchange(const annulus_config *config, annulus_exchange *exchange) {
    return get(config, "exchange", exchange, [](const annulus_config &from) { return from.execution.exchange; });
}

annulus_status annulus_config_set_workspace_limit(annulus_config *config, uint64_t bytes) {
    return guard([&] { required(config, "config").execution.workspace_limit = bytes; });
}

annulus_status annulus_config_get_workspace_limit(const annulus_config *config, uint64_t *bytes) {
    return get(config, "bytes", bytes, [](const annulus_config &from) { return from.execution.workspace_limit; });
}

annulus_status annulus_config_add_longnet(annulus_config *config, int64_t segment_length, int64_t segment_ratio,
                                          int64_t dilation_ratio, int32_t count) {
    return guard([&] {
        required(config, "config");
        check_at_least("segment_length", segment_length, 1);
        check_at_least("segment_ratio", segment_ratio, 1);
        check_at_least("dilation_ratio", dilation_ratio, 1);
        check_between("count", count, 1, max_branches);
        std::vector<Branch> added;
        std::int64_t w = segment_length;
        std::int64_t r = 1;
        for (std::int32_t i = 0; i < count; ++i) {
            if (i > 0 &&
                (__builtin_mul_overflow(w, segment_ratio, &w) || __builtin_mul_overflow(r, dilation_ratio, &r)))
                throw Error(ANNULUS_ERROR_ARGUMENT,
                            "count is %d; with these ratios branch %d goes beyond the 64-bit integers", count, i);
            added.push_back(make_branch(w, r));
        }
        append(*config, added);
    });
}

annulus_status annulus_config_add_preset(annulus_config *config, const char *name) {
    return guard([&] {
        Pattern &pattern = required(config, "config").pattern;
        const Preset &preset = find_preset(name);
        if (!pattern.branches.empty())
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "config has %zu branches; it must have none, for preset %s sets rules for all",
                        pattern.branches.size(), preset.name);
        std::vector<Branch> added;
        for (const PresetBranch &branch : preset.branches)
            added.push_back(make_branch(branch.segment_length, branch.dilation));
        append(*config, added);
        pattern.padding_rule = preset.padding_rule;
        pattern.key_rule = preset.key_rule;
        pattern.causal = preset.causal;
    });
}

const char *annulus_preset_name(int32_t index) {
    return index >= 0 && static_cast<std::size_t>(index) < std::size(presets) ? presets[index].name : nullptr;
}

annulus_status annulus_config_add_head_groups(annulus_config *config, int32_t heads, int32_t count,
                                              const int64_t *segment_lengths, const int64_t *dilations) {
    return guard([&] {
        required(config, "config");
        check_at_least("heads", heads, 1);
        check_between("count", count, 1, std::min(heads, max_branches));
        required(segment_lengths, "segment_lengths");
        required(dilations, "dilations");
        std::vector<Branch> added;
        std::int32_t first = 0;
        for (std::int32_t i = 0; i < count; ++i) {
            check_entry("segment_lengths", i, segment_lengths[i], 0);
            check_entry("dilations", i, dilations[i], 1);
            Branch branch = make_branch(segment_lengths[i], dilations[i]);
            branch.first_head = first;
            branch.head_count = heads / count + (i < heads % count ? 1 : 0);
            branch.phase_rule = ANNULUS_PHASE_FIXED;
            branch.fixed_residue = i % dilations[i];
            first += branch.head_count;
            added.push_back(branch);
        }
        append(*config, added);
    });
}
