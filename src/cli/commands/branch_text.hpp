// SPDX-License-Identifier: Apache-2.0
// Reads one branch as the command line has it: W:R, window:LEFT,RIGHT[:R] or global:COUNT, then [,property=value]...
#pragma once

#include <annulus/config.h>

#include <string>

namespace annulus::cli {

struct BranchText {
    std::string text; // as the user wrote it
    annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
    bool names_heads = false; // the text has heads= or phase=
};

// Throws Failure if the text does not follow the syntax.
BranchText parse_branch(const std::string &text);

} // namespace annulus::cli
