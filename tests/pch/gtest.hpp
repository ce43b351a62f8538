// SPDX-License-Identifier: Apache-2.0
// What Meson precompiles for the C++ tests: GoogleTest, and the headers of the standard library that most tests
// include.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>
