// SPDX-License-Identifier: Apache-2.0
// Repeated measurements of one thing.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace annulus::cli {

class Sample {
  public:
    void add(double value) { values_.insert(std::upper_bound(values_.begin(), values_.end(), value), value); }
    std::size_t size() const { return values_.size(); }
    double min() const { return values_.front(); }
    double max() const { return values_.back(); }
    double median() const {
        const std::size_t middle = values_.size() / 2;
        return values_.size() % 2 ? values_[middle] : (values_[middle - 1] + values_[middle]) / 2;
    }

  private:
    std::vector<double> values_; // ascending
};

// Returns the seconds that `work` takes.
template <class Work> double seconds_of(const Work &work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace annulus::cli
