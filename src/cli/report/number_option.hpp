// SPDX-License-Identifier: Apache-2.0
// The numbers that options of a command have.
#pragma once

#include <cstdint>
#include <string>

namespace annulus::cli {

// What is wrong with `text`, the value of an option, is thrown as Failure.
std::int64_t whole_number(const std::string &option, const std::string &text, std::int64_t lowest,
                          std::int64_t highest);
double real_number(const std::string &option, const std::string &text);

} // namespace annulus::cli
