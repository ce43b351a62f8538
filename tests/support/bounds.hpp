// SPDX-License-Identifier: Apache-2.0
// Computes what annulus/attention.h promises for every single result, for any numbers: the plain formula in long
// double, and the largest error of a result. Independent of the library.
#pragma once

#include "support/run.hpp"

#include <vector>

namespace annulus::test {

struct Bound {
    long double exact = 0; // NaN or infinite: no finite result
    long double error = 0;
    bool is_number = true; // NaN and infinity are wrong
    bool is_free = false;  // NaN or infinity in the inputs allows any result if `exact` is not finite
    bool is_open = false;  // any result is right

    bool holds(double got) const;
};

// The bounds, in the order of the results. `leaves_out_keys` is for an engine that may leave out keys whose products
// with a query exceed the type's range.
struct Bounds {
    std::vector<Bound> out, lse, d_q, d_k, d_v;
};

Bounds bounds_of(const Problem &problem, const Inputs &inputs, bool leaves_out_keys = false);

} // namespace annulus::test
