// SPDX-License-Identifier: Apache-2.0
// The version as text.
#pragma once

#include <annulus/version.h>

#define ANNULUS_TEXT_OF(x) #x
#define ANNULUS_TEXT(x) ANNULUS_TEXT_OF(x)

namespace annulus {

inline constexpr const char *version_text =
    ANNULUS_TEXT(ANNULUS_VERSION_MAJOR) "." ANNULUS_TEXT(ANNULUS_VERSION_MINOR) "." ANNULUS_TEXT(ANNULUS_VERSION_PATCH);

} // namespace annulus

#undef ANNULUS_TEXT
#undef ANNULUS_TEXT_OF
