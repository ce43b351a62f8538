// SPDX-License-Identifier: Apache-2.0
#include "engines/subject.hpp"

namespace annulus::test {

RunOptions subject() {
    return {.engine = ANNULUS_ENGINE_CPU, .threads = 2};
}

std::vector<RunOptions> subject_ways() {
    return {subject()};
}

std::vector<annulus_dtype> subject_dtypes() {
    return {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
}

} // namespace annulus::test
