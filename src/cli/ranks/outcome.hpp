// SPDX-License-Identifier: Apache-2.0
// How a rank's part ended, to find the cause among several failures.
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
// Returns the outcome of the first rank that failed by itself, else of the first that lost a connection. It is fine if
// no rank failed.
const Outcome &cause_of(const std::vector<Outcome> &outcomes);

} // namespace annulus::cli
