// SPDX-License-Identifier: Apache-2.0
// The machine's own rate: large single-precision matrix products by OpenBLAS, one on each thread of the benchmark.
#pragma once

#include "sample.hpp"

#include <string>
#include <vector>

namespace annulus::cli {

class SgemmRate {
  public:
    explicit SgemmRate(int threads);

    // Measures once more, in FLOP/s. To be spread over a run, so that the median is the rate the machine had during it.
    double measure();
    // All measurements.
    const Sample &rates() const { return rates_; }
    // The product and who computes it.
    std::string description() const;

  private:
    struct Product {
        std::vector<float> a, b, c;
    };
    void multiply();

    std::vector<Product> products_; // one a thread
    Sample rates_;
};

} // namespace annulus::cli
