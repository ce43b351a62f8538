// SPDX-License-Identifier: Apache-2.0
// annulus/config.h: checks of every value on its own, those of a branch in branch.cpp. What depends on a problem is
// checked where a plan is made.
#include <annulus/config.h>

#include "capi/branch.hpp"
#include "capi/guard.hpp"
#include "core/argument.hpp"
#include "core/pattern.hpp"
#include "engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
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
    return guard([&] { write_branch(branch_at(required(config, "config").pattern.branches, index), index, branch); });
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
