// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/problem_options.hpp"

#include "cli/report/failure.hpp"

#include <vector>

namespace annulus::cli {

namespace {

constexpr annulus_dtype dtypes[] = {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};

} // namespace

void ProblemOptions::add_to(Command &command, bool required) {
    const std::string group = "Problem";
    const std::string need = required ? "" : ", for a case of your own";
    command
        .number<std::int64_t>("--tokens", tokens, 1,
                              "N, the sequence length, such as 65536, 64Ki, 1M or 1e6" +
                                  (required ? "; this or --sequences must be given" : need))
        .value("N")
        .group(group);
    command.number<std::int32_t>("--heads", heads, 1, "H, the query heads" + need)
        .required(required)
        .value("H")
        .group(group);
    command.number<std::int32_t>("--kv-heads", kv_heads, 0, "G, the key/value heads; 0, the default, is H")
        .value("G")
        .group(group);
    command.number<std::int32_t>("--head-dim", head_dim, 1, "D, a multiple of 8 up to 256" + need)
        .required(required)
        .value("D")
        .group(group);
    command.number<std::int64_t>("--batch", batch, 1, "B, 1 unless given").value("B").group(group);
    add_dtype_option(command, dtype,
                     std::string("The tensors' dtype, float32 unless given") +
                         (required ? "" : "; on CUDA what is fast there"))
        .group(group);
}

annulus_problem ProblemOptions::problem() const {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = dtype.empty() ? ANNULUS_FLOAT32 : dtype_of(dtype);
    problem.heads = heads;
    problem.kv_heads = kv_heads ? kv_heads : heads;
    problem.head_dim = head_dim;
    problem.batch = batch;
    problem.sequence_length = tokens;
    problem.row_alignment = 16; // dense tensors in memory of their own
    return problem;
}

Option add_dtype_option(Command &command, std::string &dtype, const std::string &help) {
    std::vector<std::string> names;
    for (const annulus_dtype value : dtypes)
        names.emplace_back(annulus_dtype_name(value));
    return command.text("--dtype", dtype, help + " (also fp64, fp32, bf16 or fp16)")
        .one_of(names)
        .aliases({{"fp64", "float64"}, {"fp32", "float32"}, {"bf16", "bfloat16"}, {"fp16", "float16"}})
        .value("NAME");
}

annulus_dtype dtype_of(const std::string &name) {
    for (const annulus_dtype value : dtypes)
        if (name == annulus_dtype_name(value))
            return value;
    throw bad_input("--dtype: unknown '" + name + "'");
}

} // namespace annulus::cli
