// SPDX-License-Identifier: Apache-2.0
// Work of a known size at the hardware's highest speed. The rates of cases are compared with it.
#pragma once

#include "cli/devices/sample.hpp"

#include <functional>
#include <string>

namespace annulus::cli {

struct Yardstick {
    struct Unit {
        const char *key, *text;
    };
    static constexpr Unit flops = {"flops_per_second", "FLOP/s"};
    static constexpr Unit bytes = {"bytes_per_second", "B/s"};

    std::string name;
    std::string description;
    Unit unit;
    double amount; // FLOPs or bytes
    std::function<void()> work;
    Sample rates; // all measurements
};

} // namespace annulus::cli
