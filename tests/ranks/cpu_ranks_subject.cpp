// SPDX-License-Identifier: Apache-2.0
#include "engines/table.hpp"
#include "ranks/ranks_subject.hpp"

namespace annulus::test {

std::vector<RanksWay> ranks_ways() {
    static std::vector<Comm> comms;
    return {{"local",
             {.engine = ANNULUS_ENGINE_CPU, .threads = 1},
             quick() ? std::vector<int>{3} : std::vector<int>{1, 2, 3, 4, 8},
             [](int ranks) -> const std::vector<Comm> & { return comms = make_local_comms(ranks); },
             [](int) { return std::vector<Memory *>(); }}};
}

std::vector<annulus_dtype> ranks_rule_dtypes() {
    return {ANNULUS_FLOAT32};
}

std::vector<annulus_dtype> ranks_dtypes() {
    if (quick())
        return {ANNULUS_BFLOAT16};
    return {ANNULUS_FLOAT64, ANNULUS_BFLOAT16};
}

} // namespace annulus::test
