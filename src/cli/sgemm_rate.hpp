// SPDX-License-Identifier: Apache-2.0
// The machine's own rate: large single-precision matrix products by OpenBLAS, on as many threads as the benchmark has.
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
    void multiply_on_every_thread();
    void multiply_once();

    int threads_;
    bool own_threads_; // OpenBLAS has threads of its own
    int size_;         // of the square matrices
    std::vector<std::vector<float>> a_, b_, c_;
    Sample rates_;
};

} // namespace annulus::cli
