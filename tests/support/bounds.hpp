// SPDX-License-Identifier: Apache-2.0
// What annulus/attention.h promises of every single result, of whatever numbers: the plain formula in long double, and
// how far from it a result may be. Independent of the library.
#pragma once

#include "support/run.hpp"

#include <vector>

namespace annulus::test {

struct Bound {
    long double exact = 0; // NaN, infinite: of no finite number
    long double error = 0;
    bool is_number = true; // whether NaN and infinity are wrong
    bool is_free = false;  // whether inputs that are no numbers leave it open
    bool is_open = false;  // whether it may be anything

    bool holds(double got) const;
};

// In the order of the results. With `leaves_out_keys`, of an engine that may leave out keys whose products with a query
// leave the type's range.
struct Bounds {
    std::vector<Bound> out, lse, d_q, d_k, d_v;
};

Bounds bounds_of(const Problem &problem, const Inputs &inputs, bool leaves_out_keys = false);

} // namespace annulus::test
