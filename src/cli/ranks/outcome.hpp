// SPDX-License-Identifier: Apache-2.0
// What is left of a failed part, to find out which of several failures tells the cause.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace annulus::cli {

struct Outcome {
    enum class Kind { fine, lost_connection, failed };
    Kind kind = Kind::fine;
    int exit_code = 0;
    std::string message;
};

// Runs `work` and catches what it throws.
Outcome outcome_of(const std::function<void()> &work);
// That of the first rank that failed by itself, else of the first that failed at all; fine where none did.
const Outcome &cause_of(const std::vector<Outcome> &outcomes);

} // namespace annulus::cli
