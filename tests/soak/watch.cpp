// SPDX-License-Identifier: Apache-2.0
#include "soak/watch.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace annulus::test {
namespace {

constexpr double kibibyte = 1024;
constexpr long parts = 40;

// Returns a number of /proc/self/status.
double status_of(const std::string &name) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with(name + ":"))
            return std::stod(line.substr(name.size() + 1));
    throw std::runtime_error("/proc/self/status has no " + name);
}

double heap_in_use() {
    const struct mallinfo2 info = mallinfo2(); // for all arenas
    return static_cast<double>(info.uordblks + info.hblkhd);
}

// Returns the number of threads. A thread that was joined is still counted for a moment, so this is the least of
// several readings.
double threads() {
    double fewest = status_of("Threads");
    for (int i = 0; i < 20 && fewest > 1; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        fewest = std::min(fewest, status_of("Threads"));
    }
    return fewest;
}

double descriptors() {
    return static_cast<double>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// Returns the slope of the line through (x, y) with the least sum of squares.
double slope(const std::vector<double> &x, const std::vector<double> &y) {
    const auto count = static_cast<double>(x.size());
    const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
    const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
    double xy = 0, xx = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        xy += (x[i] - mean_x) * (y[i] - mean_y);
        xx += (x[i] - mean_x) * (x[i] - mean_x);
    }
    return xy / xx;
}

} // namespace

// The smallest leak is 32 bytes a call by malloc(), or a page of other memory. In 3000 calls each exceeds the bound of
// the heap or of the resident memory.
Watch::Watch() {
    add("heap in use, bytes", 64 * kibibyte, heap_in_use);
    add("VmRSS, bytes", 4096 * kibibyte, [] { return kibibyte * status_of("VmRSS"); });
    add("VmHWM, bytes", 4096 * kibibyte, [] { return kibibyte * status_of("VmHWM"); });
    add("threads", 0.5, threads);
    add("file descriptors", 0.5, descriptors);
}

void Watch::add(const char *name, double most, const std::function<double()> &read) {
    quantities_.push_back({name, most, read});
}

void Watch::over(long calls, const std::function<void(long, long)> &work) {
    for (Quantity &quantity : quantities_)
        quantity.samples.reserve(parts);
    done_.reserve(parts);
    const long warm_up = calls / 10;
    work(0, warm_up);
    for (long i = 0; i < parts; ++i) {
        const auto begin_of = [&](long part) { return warm_up + (calls - warm_up) * part / parts; };
        work(begin_of(i), begin_of(i + 1) - begin_of(i));
        done_.push_back(static_cast<double>(begin_of(i + 1)));
        for (Quantity &quantity : quantities_)
            quantity.samples.push_back(quantity.read());
    }
}

void Watch::expect_flat() const {
    const double watched = done_.back() - done_.front();
    std::printf("%ld calls; per thousand of them:\n%22s %14s %14s %16s %16s\n", static_cast<long>(done_.back()), "",
                "slope", "at most", "first", "last");
    for (const Quantity &quantity : quantities_) {
        const double found = 1000 * slope(done_, quantity.samples), most = 1000 * quantity.most / watched;
        std::printf("%22s %14.3f %14.3f %16.0f %16.0f\n", quantity.name.c_str(), found, most, quantity.samples.front(),
                    quantity.samples.back());
        EXPECT_LE(found, most) << quantity.name << " per thousand calls: " << testing::PrintToString(quantity.samples);
    }
    std::fflush(stdout);
}

long soak_calls(long in_short, long in_full) {
    const char *const form = std::getenv("ANNULUS_SOAK");
    return form && form == std::string_view("long") ? in_full : in_short;
}

} // namespace annulus::test
