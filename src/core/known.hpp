// SPDX-License-Identifier: Apache-2.0
// The values of the API's enumerations that this library knows. Checks of arguments and annulus_knows() both use them.
#pragma once

#include <annulus/annulus.h>

#include <bit>
#include <cstdint>

namespace annulus {

// The first and the last enumerator of an enumeration that has no gaps.
struct KnownRange {
    std::int32_t first, last;
    constexpr bool has(std::int64_t value) const { return value >= first && value <= last; }
};

// known(annulus_dtype()) is the range of annulus_dtype, and so on: the type of the argument chooses the enumeration.
// Its value does not matter.
constexpr KnownRange known(annulus_feature) {
    return {ANNULUS_FEATURE_FEATURE, ANNULUS_FEATURE_BRANCH_KIND};
}
constexpr KnownRange known(annulus_dtype) {
    return {ANNULUS_FLOAT64, ANNULUS_FLOAT16};
}
constexpr KnownRange known(annulus_device) {
    return {ANNULUS_DEVICE_CPU, ANNULUS_DEVICE_CUDA};
}
constexpr KnownRange known(annulus_engine) {
    return {ANNULUS_ENGINE_AUTO, ANNULUS_ENGINE_MMA};
}
constexpr KnownRange known(annulus_pass) {
    return {ANNULUS_PASS_FORWARD, ANNULUS_PASS_MASS};
}
constexpr KnownRange known(annulus_phase_rule) {
    return {ANNULUS_PHASE_BLOCK, ANNULUS_PHASE_FIXED};
}
constexpr KnownRange known(annulus_query_rule) {
    return {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_EVERY};
}
constexpr KnownRange known(annulus_order) {
    return {ANNULUS_ORDER_LINEAR, ANNULUS_ORDER_HILBERT};
}
constexpr KnownRange known(annulus_branch_kind) {
    return {ANNULUS_BRANCH_SEGMENTS, ANNULUS_BRANCH_GLOBAL};
}
constexpr KnownRange known(annulus_padding_rule) {
    return {ANNULUS_PADDING_EXACT, ANNULUS_PADDING_ZERO_KEYS};
}
constexpr KnownRange known(annulus_key_rule) {
    return {ANNULUS_KEY_EACH_BRANCH, ANNULUS_KEY_ONCE};
}
constexpr KnownRange known(annulus_exchange) {
    return {ANNULUS_EXCHANGE_AUTO, ANNULUS_EXCHANGE_GATHER};
}

// All bits that the flags of a call, or of a communicator, may have.
inline constexpr std::uint64_t known_call_flags =
    ANNULUS_CALL_QUERY_WINDOW | ANNULUS_CALL_ADD_D_Q | ANNULUS_CALL_ADD_D_K | ANNULUS_CALL_ADD_D_V;
inline constexpr std::uint64_t known_comm_flags = ANNULUS_COMM_MAY_ABORT | ANNULUS_COMM_ONLY_NCCL;

constexpr bool is_known_bit(std::uint64_t flags, std::int64_t value) {
    const auto bit = static_cast<std::uint64_t>(value);
    return std::has_single_bit(bit) && (flags & bit) != 0;
}

struct NamedStatus {
    std::int32_t status;
    const char *name;
};

inline constexpr NamedStatus known_statuses[] = {
    {ANNULUS_OK, "ok"},
    {ANNULUS_ERROR_ARGUMENT, "argument"},
    {ANNULUS_ERROR_UNSUPPORTED, "unsupported"},
    {ANNULUS_ERROR_MEMORY, "memory"},
    {ANNULUS_ERROR_WORKSPACE, "workspace"},
    {ANNULUS_ERROR_DECLINED, "declined"},
    {ANNULUS_ERROR_DEVICE, "device"},
    {ANNULUS_ERROR_COMM, "comm"},
    {ANNULUS_ERROR_COMM_LIBRARY, "comm_library"},
    {ANNULUS_ERROR_INTERNAL, "internal"},
};

// Returns the entry of `status`, or null if there is none.
constexpr const NamedStatus *find_status(std::int64_t status) {
    for (const NamedStatus &known_status : known_statuses)
        if (known_status.status == status)
            return &known_status;
    return nullptr;
}

} // namespace annulus
