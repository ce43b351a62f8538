// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "place.hpp"

namespace annulus::cli {

std::unique_ptr<Place> make_host_place(int threads);

} // namespace annulus::cli
