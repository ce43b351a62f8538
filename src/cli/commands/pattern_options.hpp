// SPDX-License-Identifier: Apache-2.0
// The options that say which keys a query attends to.
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
    // Whether the user gave any of these options.
    bool given() const {
        return !empty() || head_groups || causal || !padding.empty() || !key_rule.empty() || scale.has_value();
    }
    // The pattern for problems of `heads` query heads.
    Config config(std::int32_t heads) const;
    // Configs of one branch each, which give queries the same keys of it, but for padding and how often they count.
    std::vector<Config> one_by_one(std::int32_t heads) const;
    // What the user would call each branch of config(heads).
    std::vector<std::string> labels(std::int32_t heads) const;
};

} // namespace annulus::cli
