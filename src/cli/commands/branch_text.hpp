// SPDX-License-Identifier: Apache-2.0
// One branch as the command line writes it: W:R[,property=value]...
#pragma once

#include <annulus/config.h>

#include <cstdint>
#include <optional>
#include <string>

namespace annulus::cli {

struct BranchText {
    struct Heads {
        std::int32_t first, count;
    };
    struct Phase {
        annulus_phase_rule rule;
        std::int64_t residue;
    };

    std::string text; // as it was written
    std::int64_t segment_length = 0;
    std::int64_t dilation = 1;
    std::optional<Heads> heads;
    std::optional<Phase> phase;
    std::optional<annulus_query_rule> query_rule;
    std::optional<annulus_order> order;
    std::int64_t grid_width = 0;
};

inline constexpr const char *branch_syntax =
    "W:R[,heads=A-B][,phase=block|interleave|fixed:X][,query=dilated|residue|every][,order=linear|hilbert][,width=C]";

// Throws Failure where the text does not follow the syntax.
BranchText parse_branch(const std::string &text);

// Gives branch `index` of the config the properties that the text names.
void apply_properties(annulus_config *config, std::int32_t index, const BranchText &branch);

} // namespace annulus::cli
