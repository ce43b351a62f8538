// SPDX-License-Identifier: Apache-2.0
#include "cpu/blas.hpp"

namespace annulus {

const char *blas_description() {
    return openblas_get_config();
}

} // namespace annulus
