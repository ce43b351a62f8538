// SPDX-License-Identifier: Apache-2.0
// annulus/hilbert.h.
#include <annulus/hilbert.h>

#include "capi/guard.hpp"
#include "core/argument.hpp"
#include "core/hilbert.hpp"

using namespace annulus;

annulus_status annulus_hilbert_curve(int64_t length, int64_t width, int64_t *positions) {
    return guard([&] {
        required(positions, "positions");
        check_at_least("length", length, 1);
        check_at_least("width", width, 0);
        if (width != 0 && length % width != 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "width is %lld; it must be 0 or divide length %lld",
                        static_cast<long long>(width), static_cast<long long>(length));
        const Curve curve = Curve::hilbert(length, width != 0 ? width : Curve::automatic_width(length));
        for (std::int64_t p = 0; p < length; ++p)
            positions[p] = curve.position(p);
    });
}
