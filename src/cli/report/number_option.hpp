// SPDX-License-Identifier: Apache-2.0
// Reads the numbers that are values of options.
#pragma once

#include <cstdint>
#include <string>

namespace annulus::cli {

// Return the number in `text`, the value of `option`. Throw Failure, which names the option, if it is not a number in
// range.
std::int64_t whole_number(const std::string &option, const std::string &text, std::int64_t lowest,
                          std::int64_t highest);
double real_number(const std::string &option, const std::string &text);

} // namespace annulus::cli
