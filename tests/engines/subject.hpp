// SPDX-License-Identifier: Apache-2.0
// The engine under test. The programs of this folder know nothing else about it. They test another engine if they are
// linked with another definition of these declarations.
#pragma once

#include "support/run.hpp"

#include <algorithm>
#include <vector>

namespace annulus::test {

RunOptions subject();

// Returns options that must not change the result. The first ones are subject().
std::vector<RunOptions> subject_ways();

// Returns the dtypes that the engine accepts.
std::vector<annulus_dtype> subject_dtypes();

inline bool subject_takes(annulus_dtype dtype) {
    const std::vector<annulus_dtype> dtypes = subject_dtypes();
    return std::find(dtypes.begin(), dtypes.end(), dtype) != dtypes.end();
}

// Returns the dtype for tests that would take too long in all dtypes.
inline annulus_dtype subject_usual_dtype() {
    return subject_takes(ANNULUS_FLOAT32) ? ANNULUS_FLOAT32 : ANNULUS_FLOAT16;
}

} // namespace annulus::test
