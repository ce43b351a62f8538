// SPDX-License-Identifier: Apache-2.0
// The options that give a problem without data its sizes, and the dtype of any.
#pragma once

#include "cli/report/options.hpp"

#include <annulus/annulus.h>

#include <cstdint>
#include <string>

namespace annulus::cli {

struct ProblemOptions {
    std::int64_t tokens = 0;
    std::int32_t heads = 0;
    std::int32_t kv_heads = 0; // 0: as many as heads
    std::int32_t head_dim = 0;
    std::int64_t batch = 1;
    std::string dtype; // empty: float32

    void add_to(Command &command, bool required);
    // Whether the user gave a size.
    bool given() const { return tokens || heads || kv_heads || head_dim || batch != 1; }
    // All tokens.
    annulus_problem problem() const;
};

Option add_dtype_option(Command &command, std::string &dtype, const std::string &help);
annulus_dtype dtype_of(const std::string &name);

} // namespace annulus::cli
