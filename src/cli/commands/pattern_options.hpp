// SPDX-License-Identifier: Apache-2.0
// The options that select the keys of each query.
#pragma once

#include "cli/devices/handles.hpp"
#include "cli/report/options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

struct PatternOptions {
    std::vector<std::string> presets;
    std::vector<std::string> branches;
    bool head_groups = false;
    bool causal = false;
    std::string padding;
    std::string key_rule;
    std::optional<double> scale;

    void add_to(Command &command);
    bool empty() const { return presets.empty() && branches.empty(); }
    // True if the user gave any of the pattern's options.
    bool is_given() const {
        return !empty() || head_groups || causal || !padding.empty() || !key_rule.empty() || scale.has_value();
    }
    // Returns the pattern for problems with `heads` query heads.
    Config config(std::int32_t heads) const;
    // Returns a config for each branch. It gives queries the same keys as the branch has in config(heads), but without
    // the padding rule and the key rule.
    std::vector<Config> one_by_one(std::int32_t heads) const;
    // Returns a name for each branch of config(heads): the user's text, or W:R for a branch of a preset.
    std::vector<std::string> labels(std::int32_t heads) const;
};

} // namespace annulus::cli
