// SPDX-License-Identifier: Apache-2.0
// One problem on random data, timed.
#pragma once

#include "options.hpp"
#include "sample.hpp"
#include "sgemm_rate.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

struct BenchCase {
    std::string name;
    ProblemOptions problem;
    PatternOptions pattern;
};

struct PassTimes {
    Sample seconds;
    double flops = 0;
    std::uint64_t workspace_bytes = 0;                // as announced
    std::optional<std::uint64_t> measured_peak_bytes; // above the tensors; none where the system does not tell
};

struct Measurement {
    PassTimes forward, backward;
    Sample sgemm_rates; // taken in turns with the passes
};

// The tensors of a problem and the calls on them.
class Run {
  public:
    Run(const BenchCase &bench_case, const ExecutionOptions &execution);

    const annulus_problem &problem() const { return problem_; }
    const annulus_estimate &estimate() const { return estimate_; }
    void forward();
    void add_gradients(); // the tensors of backward
    void backward();      // after forward and add_gradients

  private:
    annulus_tensor make_tensor(annulus_dtype dtype, std::initializer_list<std::int64_t> shape, bool random);
    annulus_tensor make_rows(std::int64_t length, std::int32_t heads, bool random);

    Context context_;
    annulus_problem problem_;
    annulus_estimate estimate_ = ANNULUS_ESTIMATE_INIT;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    annulus_tensor q_, k_, v_, out_, lse_;
    annulus_tensor d_out_{}, d_q_{}, d_k_{}, d_v_{};
    std::uint64_t random_state_ = 0x9E3779B97F4A7C15;
};

// Warms up, then times `repeats` rounds of forward, backward and the machine's own sgemm.
Measurement measure(Run &run, int repeats, SgemmRate &sgemm);

} // namespace annulus::cli
