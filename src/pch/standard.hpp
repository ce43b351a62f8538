// SPDX-License-Identifier: Apache-2.0
// The headers that Meson precompiles for the library and the program: those of the standard library that most files
// include. A file still includes what it uses: builds with -Db_pch=false, such as packages, do not use this header.
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
