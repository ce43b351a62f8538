// SPDX-License-Identifier: Apache-2.0
// What a process holds while it does the same thing again and again: memory, threads, open files.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace annulus::test {

class Watch {
  public:
    // Bytes of the heap that are in use, VmRSS and VmHWM, threads and file descriptors of this process.
    Watch();

    // `most`: how far a line through the samples may rise from the first to the last.
    void add(const char *name, double most, const std::function<double()> &read);

    // Calls work(first, count) for the calls 0 … calls - 1, part by part, and looks at everything after each part. The
    // first tenth is a warm-up.
    void over(long calls, const std::function<void(long first, long count)> &work);

    // Prints the slopes by least squares, in units per thousand calls, and fails where one is above its bound.
    void expect_flat() const;

  private:
    struct Quantity {
        std::string name;
        double most;
        std::function<double()> read;
        std::vector<double> samples = {};
    };

    std::vector<Quantity> quantities_;
    std::vector<double> done_; // calls, at each sample
};

// `in_short`, or `in_full` where ANNULUS_SOAK is `long`.
long soak_calls(long in_short, long in_full);

} // namespace annulus::test
