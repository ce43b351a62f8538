// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/pattern_options.hpp"

#include "cli/commands/branch_text.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace annulus::cli {

namespace {

constexpr std::string_view longnet_prefix = "longnet:";

// Returns the names of the library's presets.
std::vector<std::string> model_names() {
    std::vector<std::string> names;
    while (const char *const name = annulus_preset_name(static_cast<std::int32_t>(names.size())))
        names.emplace_back(name);
    return names;
}

std::string listed_models() {
    std::string list;
    for (const std::string &name : model_names())
        list.append(list.empty() ? "" : ", ").append(name);
    return list;
}

struct LongNet {
    std::int64_t segment_length, segment_ratio, dilation_ratio;
    std::int32_t count;
};

LongNet parse_longnet(const std::string &preset) {
    std::array<std::int64_t, 4> numbers{};
    const std::vector<std::string_view> parts = split(std::string_view(preset).substr(longnet_prefix.size()), ',');
    bool is_legal = parts.size() == numbers.size();
    for (std::size_t i = 0; is_legal && i < numbers.size(); ++i) {
        const std::optional<std::int64_t> number = parse_count(parts[i]);
        is_legal = number && *number >= 1;
        numbers[i] = number.value_or(0);
    }
    if (!is_legal || numbers[3] > std::numeric_limits<std::int32_t>::max())
        throw bad_input("--preset " + preset + ": must be longnet:W,SEGMENT_RATIO,DILATION_RATIO,COUNT, all >= 1");
    return {numbers[0], numbers[1], numbers[2], static_cast<std::int32_t>(numbers[3])};
}

void add_preset(annulus_config *config, const std::string &preset) {
    const std::string subject = "--preset " + preset;
    if (std::ranges::count(model_names(), preset) > 0) {
        if (branch_count(config) > 0)
            throw bad_input(subject + ": is a whole model; it must come first, and once");
        check(annulus_config_add_preset(config, preset.c_str()), subject);
    } else if (preset.starts_with(longnet_prefix)) {
        const LongNet p = parse_longnet(preset);
        check(annulus_config_add_longnet(config, p.segment_length, p.segment_ratio, p.dilation_ratio, p.count),
              subject);
    } else {
        throw bad_input(subject + ": must be " + listed_models() + " or longnet:W,SEGMENT_RATIO,DILATION_RATIO,COUNT");
    }
}

void add_head_groups(annulus_config *config, std::int32_t heads, const std::vector<BranchText> &branches) {
    if (std::cmp_greater(branches.size(), heads))
        throw bad_input("--head-groups: " + counted(static_cast<std::int64_t>(branches.size()), "branch", "branches") +
                        " for " + counted(heads, "head", "heads") + "; each branch must get one at least");
    std::vector<std::int64_t> segment_lengths, dilations;
    for (const BranchText &branch : branches) {
        if (branch.branch.kind != ANNULUS_BRANCH_SEGMENTS)
            throw bad_input("--branch " + branch.text + ": --head-groups shares heads out among segments W:R alone");
        if (branch.names_heads)
            throw bad_input("--branch " + branch.text + ": --head-groups gives each branch its heads and phase");
        segment_lengths.push_back(branch.branch.segment_length);
        dilations.push_back(branch.branch.dilation);
    }
    check(annulus_config_add_head_groups(config, heads, static_cast<std::int32_t>(branches.size()),
                                         segment_lengths.data(), dilations.data()),
          "--head-groups");
    for (std::size_t i = 0; i < branches.size(); ++i) {
        const auto index = static_cast<std::int32_t>(i);
        annulus_branch made = ANNULUS_BRANCH_INIT(0, 1);
        check(annulus_config_get_branch(config, index, &made));
        made.query_rule = branches[i].branch.query_rule;
        made.order = branches[i].branch.order;
        made.grid_width = branches[i].branch.grid_width;
        check(annulus_config_set_branch(config, index, &made), "--branch " + branches[i].text);
    }
}

} // namespace

void PatternOptions::add_to(Command &command) {
    const std::string group = "Pattern";
    command
        .texts("--branch", branches,
               "A branch: segments of W positions (0: the whole sequence), every R-th kept. Repeatable. Its properties "
               "may follow: heads=A-B, phase=block, phase=interleave or phase=fixed:X, query=dilated, query=residue or "
               "query=every, order=linear or order=hilbert, and width=C, the columns of the Hilbert order's grid. "
               "window:LEFT,RIGHT:R instead of W:R is a window: LEFT keys before a query and RIGHT after it, or all, "
               "every R-th. global:COUNT has keys for every query: COUNT positions from first=F on, which with "
               "queries=all attend to every key, too")
        .value("W:R[,PROPERTY=VALUE...]")
        .group(group);
    std::vector<std::string> suggested = model_names();
    suggested.emplace_back(longnet_prefix);
    command
        .texts("--preset", presets,
               "A known model: " + listed_models() +
                   ", with its padding, or the branches of LongNet's series "
                   "longnet:W,SEGMENT_RATIO,DILATION_RATIO,COUNT. Those of --branch come after its branches")
        .suggests(suggested)
        .value("NAME")
        .group(group);
    command.flag("--head-groups", head_groups, "Share the heads out among the branches of --branch").group(group);
    command.flag("--causal", causal, "Attend only to positions up to the query's own").group(group);
    command
        .text("--padding", padding,
              "Keys in the slots that short segments leave empty: none (exact), or keys of score 0 as LongNet's "
              "published code has (zero-keys)")
        .one_of({"exact", "zero-keys"})
        .value("RULE")
        .group(group);
    command
        .text("--key-rule", key_rule,
              "How often a key counts that several branches give to a query: once for each (each-branch, the "
              "default), or once")
        .one_of({"each-branch", "once"})
        .value("RULE")
        .group(group);
    command.number("--scale", scale, "Factor on Q.K, 1/sqrt(D) unless given").value("X").group(group);
}

Config PatternOptions::config(std::int32_t heads) const {
    if (empty())
        throw bad_input("no pattern: give --branch or --preset");
    if (head_groups && (branches.empty() || !presets.empty()))
        throw bad_input("--head-groups shares the heads out among branches of --branch alone");
    std::vector<BranchText> parsed;
    for (const std::string &branch : branches)
        parsed.push_back(parse_branch(branch));

    Config config = make_config();
    for (const std::string &preset : presets)
        add_preset(config.get(), preset);
    if (head_groups)
        add_head_groups(config.get(), heads, parsed);
    else
        for (const BranchText &branch : parsed)
            check(annulus_config_add_branch(config.get(), &branch.branch, nullptr), "--branch " + branch.text);

    // A preset may have set the following values. The user's options override it.
    if (causal)
        check(annulus_config_set_causal(config.get(), 1));
    if (!padding.empty())
        check(annulus_config_set_padding_rule(config.get(),
                                              padding == "exact" ? ANNULUS_PADDING_EXACT : ANNULUS_PADDING_ZERO_KEYS));
    if (!key_rule.empty())
        check(
            annulus_config_set_key_rule(config.get(), key_rule == "once" ? ANNULUS_KEY_ONCE : ANNULUS_KEY_EACH_BRANCH));
    if (scale)
        check(annulus_config_set_scale(config.get(), *scale), "--scale");
    return config;
}

std::vector<Config> PatternOptions::one_by_one(std::int32_t heads) const {
    const Config all = config(heads);
    std::vector<Config> configs;
    for (const annulus_branch &branch : get_branches(all.get())) {
        configs.push_back(make_config());
        check(annulus_config_add_branch(configs.back().get(), &branch, nullptr));
        check(annulus_config_set_causal(configs.back().get(), causal));
    }
    return configs;
}

std::vector<std::string> PatternOptions::labels(std::int32_t heads) const {
    const Config made = config(heads);
    const auto preset_branch_count = branch_count(made.get()) - static_cast<std::int32_t>(branches.size());
    std::vector<std::string> labels;
    for (std::int32_t i = 0; i < preset_branch_count; ++i) {
        annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
        check(annulus_config_get_branch(made.get(), i, &branch));
        labels.push_back(std::to_string(branch.segment_length) + ":" + std::to_string(branch.dilation));
    }
    labels.insert(labels.end(), branches.begin(), branches.end());
    return labels;
}

} // namespace annulus::cli
