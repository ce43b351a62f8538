// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/context.hpp"

namespace annulus::cli {

Context make_context(const PatternOptions &pattern, const ExecutionOptions &execution, std::int32_t heads) {
    const Config config = pattern.config(heads);
    execution.apply_to(config.get());
    Context context = create_context(execution.device);
    check(annulus_context_set_config(context.get(), config.get()));
    check(annulus_context_set_threads(context.get(), execution.threads), "--threads");
    return context;
}

} // namespace annulus::cli
