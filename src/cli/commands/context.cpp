// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/context.hpp"

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

} // namespace annulus::cli
