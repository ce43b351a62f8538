// SPDX-License-Identifier: Apache-2.0
// The options for the sizes of a problem without data, and for the dtype of any problem.
#pragma once

#include "cli/report/options.hpp"

#include <annulus/annulus.h>

#include <cstdint>
#include <string>

namespace annulus::cli {

struct ProblemOptions {
    std::int64_t tokens = 0;
    std::int32_t heads = 0;
    std::int32_t kv_heads = 0; // 0: equal to heads
    std::int32_t head_dim = 0;
    std::int64_t batch = 1;
    std::string dtype; // empty: float32

    // required: the parser refuses a command without the sizes. It never asks for the tokens, since --sequences may
    // tell them.
    void add_to(Command &command, bool required);
    // True if the user gave any of the sizes.
    bool is_given() const { return tokens || heads || kv_heads || head_dim || batch != 1; }
    // Returns the problem with all tokens on one rank.
    annulus_problem problem() const;
};

Option add_dtype_option(Command &command, std::string &dtype, const std::string &help);
annulus_dtype dtype_of(const std::string &name);

} // namespace annulus::cli
