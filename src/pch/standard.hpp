// SPDX-License-Identifier: Apache-2.0
// What Meson precompiles for the library and the program: the headers of the standard library that most files include.
// A file still includes what it uses, since builds with -Db_pch=false, as packages are, go without this header.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
