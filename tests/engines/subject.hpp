// SPDX-License-Identifier: Apache-2.0
// The engine that the programs of this folder test. They say nothing else about it, so that another engine is tested by
// linking them with another definition of what is declared here.
#pragma once

#include "support/run.hpp"

#include <algorithm>
#include <vector>

namespace annulus::test {

RunOptions subject();

// Options that must not change the result; the first are subject().
std::vector<RunOptions> subject_ways();

// What the engine takes.
std::vector<annulus_dtype> subject_dtypes();

inline bool subject_takes(annulus_dtype dtype) {
    const std::vector<annulus_dtype> dtypes = subject_dtypes();
    return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

// For what takes too long to be done in all of them.
inline annulus_dtype subject_usual_dtype() {
    return subject_takes(ANNULUS_FLOAT32) ? ANNULUS_FLOAT32 : ANNULUS_FLOAT16;
}

} // namespace annulus::test
