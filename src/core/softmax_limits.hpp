// SPDX-License-Identifier: Apache-2.0
// How far softmax statistics can be trusted. annulus/attention.h says what follows for callers.
#pragma once

#include <limits>

namespace annulus {

// Returns LSE as backward may use it. It is NaN if e^(score - LSE) could be off by more than about 10 %: from there on,
// neighbouring numbers of the type are 1/8 apart. It keeps -infinity, the LSE of a query without keys.
template <class T> constexpr T usable_lse(T lse) {
    constexpr T limit = static_cast<T>(1LL << (std::numeric_limits<T>::digits - 4));
    return lse < limit && (lse > -limit || lse == -std::numeric_limits<T>::infinity())
               ? lse
               : std::numeric_limits<T>::quiet_NaN();
}

} // namespace annulus
