// SPDX-License-Identifier: Apache-2.0
// Watches what a process holds while it repeats the same work: memory, threads, open files.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace annulus::test {

class Watch {
  public:
    // Watches bytes of the heap in use, VmRSS and VmHWM, threads and file descriptors of this process.
    Watch();

    // Watches a further number. `most` is the most that a line through the samples may rise from the first sample
    // to the last.
    void add(const char *name, double most, const std::function<double()> &read);

    // Calls work(first, count) for the calls 0 … calls - 1, part by part, and takes samples after each part. The first
    // tenth is a warm-up.
    void over(long calls, const std::function<void(long first, long count)> &work);

    // Prints the slopes by least squares, in units per thousand calls. Fails if a slope is above its bound.
    void expect_flat() const;

  private:
    struct Quantity {
        std::string name;
        double most;
        std::function<double()> read;
        std::vector<double> samples = {};
    };

    std::vector<Quantity> quantities_;
    std::vector<double> done_; // number of calls at each sample
};

// Returns `in_full` if ANNULUS_SOAK is `long`, otherwise `in_short`.
long soak_calls(long in_short, long in_full);

} // namespace annulus::test
