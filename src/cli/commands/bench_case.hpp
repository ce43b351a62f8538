// SPDX-License-Identifier: Apache-2.0
// Times forward and backward of one problem on random data.
#pragma once

#include "cli/commands/context.hpp"
#include "cli/commands/problem_options.hpp"
#include "cli/devices/memory.hpp"
#include "cli/devices/random_numbers.hpp"
#include "cli/devices/sample.hpp"
#include "cli/ranks/ranks.hpp"
#include "cli/report/progress.hpp"

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
    std::vector<std::int64_t> sequence_starts = {}; // starts of packed sequences, then the end; empty: none
    std::optional<Shards> shards = {};              // none: as the rank's options say
};

struct PassTimes {
    Sample seconds;
    double flops = 0;
    std::uint64_t workspace_bytes = 0;                // what the library announces
    std::optional<std::uint64_t> measured_peak_bytes; // beyond the tensors; none if the system does not say
};

struct Measurement {
    PassTimes forward, backward;
    Sample product_rates; // of the matrix product; its runs alternate with the passes
};

// The tensors of a problem, or of a rank's shard of it, and the calls that compute with them.
class Workload {
  public:
    Workload(const BenchCase &bench_case, const Rank &rank, Memory &memory);
    Workload(const Workload &) = delete;
    Workload &operator=(const Workload &) = delete;

    annulus_context *context() const { return context_.get(); }
    const annulus_problem &problem() const { return problem_; } // over all ranks
    std::int64_t rows() const { return rows_; }                 // on this rank
    const annulus_estimate &forward_estimate() const { return forward_estimate_; }
    const annulus_estimate &backward_estimate() const { return backward_estimate_; }
    void forward();
    void add_gradients(); // allocates the tensors of backward
    void backward();      // requires forward() and add_gradients()

  private:
    annulus_tensor make_tensor(annulus_dtype dtype, std::initializer_list<std::int64_t> shape, bool random);
    annulus_tensor make_rows(std::int32_t heads, bool random);

    Memory &memory_;
    Context context_;
    const std::vector<std::int64_t> sequence_starts_;
    annulus_call_options options_ = ANNULUS_CALL_OPTIONS_INIT;
    annulus_problem problem_; // points to the options
    std::int64_t rows_;
    annulus_estimate forward_estimate_, backward_estimate_;
    RandomNumbers numbers_;
    std::vector<Allocation> allocations_;
    annulus_tensor q_, k_, v_, out_, lse_;
    annulus_tensor d_out_{}, d_q_{}, d_k_{}, d_v_{};
};

struct PassFlops {
    double forward, backward;
};

// Estimates the FLOPs of a whole problem. The workspace limit of `execution` does not count here.
PassFlops estimate_flops(const BenchCase &bench_case, const ExecutionOptions &execution);

// Warms up, then times `repeats` rounds. A round runs the yardsticks, forward and backward. The first yardstick must be
// the matrix product.
Measurement measure(Workload &workload, int repeats, std::vector<Yardstick> &yardsticks, Memory &memory,
                    Progress &progress);
// Returns the FLOPs that measure() reports to its progress in total.
double work_of(const BenchCase &bench_case, const ExecutionOptions &execution, int repeats,
               const std::vector<Yardstick> &yardsticks, const Memory &memory);

} // namespace annulus::cli
