// SPDX-License-Identifier: Apache-2.0
// One branch as the command line writes it: W:R[,property=value]...
#pragma once

#include <annulus/config.h>

#include <string>

namespace annulus::cli {

struct BranchText {
    std::string text; // as it was written
    annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
    bool names_heads = false; // or a phase
};

// Throws Failure where the text does not follow the syntax.
BranchText parse_branch(const std::string &text);

} // namespace annulus::cli
