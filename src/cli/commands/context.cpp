// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/context.hpp"

#include <algorithm>

namespace annulus::cli {

Context make_context(annulus_config *config, const ExecutionOptions &execution) {
    execution.apply_to(config);
    Context context = create_context(execution.device);
    check(annulus_context_set_config(context.get(), config));
    check(annulus_context_set_threads(context.get(), execution.threads), "--threads");
    return context;
}

Context make_context(const PatternOptions &pattern, const ExecutionOptions &execution, std::int32_t heads) {
    return make_context(pattern.config(heads).get(), execution);
}

annulus_estimate estimate_of(annulus_context *context, const annulus_problem &problem, annulus_pass pass,
                             std::int32_t branch) {
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    check(annulus_estimate_problem(context, &problem, pass, branch, &estimate));
    return estimate;
}

double forward_flops(annulus_context *context, annulus_problem problem, std::int64_t query_start, std::int64_t rows,
                     bool has_ranks) {
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    if (!has_ranks) {
        options.flags = ANNULUS_CALL_QUERY_WINDOW;
        options.query_start = query_start;
        problem.query_length = rows;
        problem.options = &options;
    }
    return estimate_of(context, problem, ANNULUS_PASS_FORWARD).flops;
}

std::int64_t largest_dilation(const annulus_context *context) {
    annulus_config *copy = nullptr;
    check(annulus_context_copy_config(&copy, context));
    const Config config(copy);
    std::int64_t largest = 1;
    for (const annulus_branch &branch : get_branches(config.get()))
        largest = std::max(largest, branch.dilation);
    return largest;
}

} // namespace annulus::cli
