// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of this process.
#pragma once

#include "cli/ranks/ranks.hpp"

#include <memory>

namespace annulus::cli {

std::unique_ptr<Ranks> make_thread_ranks(int count, const RankOptions &options, const ExecutionOptions &execution);

} // namespace annulus::cli
