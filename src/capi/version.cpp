// SPDX-License-Identifier: Apache-2.0
// annulus/version.h.
#include <annulus/version.h>

#include "capi/guard.hpp"
#include "core/dtype_number.hpp"
#include "core/known.hpp"
#include "core/version.hpp"
#include "cpu/simd/simd.hpp"
#include "engine/cuda_plugin.hpp"
#include "transport/mpi_plugin.hpp"

#include <array>
#include <cstdio>

#if defined(__clang__)
#define ANNULUS_COMPILER __VERSION__
#else
#define ANNULUS_COMPILER "GCC " __VERSION__
#endif

int annulus_version(void) {
    return ANNULUS_VERSION;
}

const char *annulus_version_string(void) {
    return annulus::version_text;
}

const char *annulus_build_info(void) {
    const annulus::CancellationOff cancellation_off; // it may load plugins
    static const auto line = []() noexcept {
        std::array<char, 512> text{};
        std::snprintf(text.data(), text.size(), "annulus %s, compiler %s, vector instructions %s, CUDA %s, MPI %s",
                      annulus_version_string(), ANNULUS_COMPILER, annulus::simd_name(), annulus::cuda_description(),
                      annulus::mpi_description());
        return text;
    }();
    return line.data();
}

int annulus_knows(annulus_feature feature, int64_t value) {
    using namespace annulus;
    switch (enum_value(feature)) {
    case ANNULUS_FEATURE_FEATURE:
        return known(annulus_feature()).has(value);
    case ANNULUS_FEATURE_STATUS:
        return find_status(value) != nullptr;
    case ANNULUS_FEATURE_DTYPE:
        return known(annulus_dtype()).has(value);
    case ANNULUS_FEATURE_DEVICE:
        return known(annulus_device()).has(value);
    case ANNULUS_FEATURE_ENGINE:
        return known(annulus_engine()).has(value);
    case ANNULUS_FEATURE_PASS:
        return known(annulus_pass()).has(value);
    case ANNULUS_FEATURE_PHASE_RULE:
        return known(annulus_phase_rule()).has(value);
    case ANNULUS_FEATURE_QUERY_RULE:
        return known(annulus_query_rule()).has(value);
    case ANNULUS_FEATURE_ORDER:
        return known(annulus_order()).has(value);
    case ANNULUS_FEATURE_PADDING_RULE:
        return known(annulus_padding_rule()).has(value);
    case ANNULUS_FEATURE_KEY_RULE:
        return known(annulus_key_rule()).has(value);
    case ANNULUS_FEATURE_EXCHANGE:
        return known(annulus_exchange()).has(value);
    case ANNULUS_FEATURE_CALL_FLAG:
        return is_known_bit(known_call_flags, value);
    case ANNULUS_FEATURE_COMM_FLAG:
        return is_known_bit(known_comm_flags, value);
    case ANNULUS_FEATURE_BRANCH_KIND:
        return known(annulus_branch_kind()).has(value);
    default:
        return 0;
    }
}
