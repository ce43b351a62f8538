// SPDX-License-Identifier: Apache-2.0
#include "capi/branch.hpp"

#include "capi/sized_struct.hpp"
#include "core/argument.hpp"

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <utility>

namespace annulus {

namespace {

annulus_branch read_branch(const annulus_branch *branch) {
    // A caller need not set the padding behind the last field of the first version, `order`, so no field may lie there.
    constexpr std::size_t first_size = sizeof(std::size_t) + 4 * sizeof(std::int64_t) + 6 * sizeof(std::int32_t);
    static_assert(offsetof(annulus_branch, order) < first_size && offsetof(annulus_branch, left) == first_size);
    return read_sized("branch", branch, &annulus_branch::order);
}

const char *kind_name(annulus_branch_kind kind) {
    return kind == ANNULUS_BRANCH_WINDOW ? "window" : kind == ANNULUS_BRANCH_GLOBAL ? "global" : "segments";
}

// Checks fields that only branches of kind `of` have.
void check_fields_of(annulus_branch_kind of, annulus_branch_kind kind,
                     std::initializer_list<std::pair<const char *, std::int64_t>> fields) {
    for (const auto &[name, value] : fields)
        if (kind != of && value != 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %lld; it must be 0 for a branch of kind %s", name,
                        static_cast<long long>(value), kind_name(kind));
}

// Checks what a branch that has no segments may have.
void check_without_segments(const annulus_branch &given) {
    const char *const kind = kind_name(given.kind);
    check_fields_of(ANNULUS_BRANCH_SEGMENTS, given.kind, {{"segment_length", given.segment_length}});
    if (given.order != ANNULUS_ORDER_LINEAR)
        throw Error(ANNULUS_ERROR_ARGUMENT, "order is hilbert; it must be linear for a branch of kind %s", kind);
    if (given.kind == ANNULUS_BRANCH_GLOBAL) {
        if (given.dilation != 1)
            throw Error(ANNULUS_ERROR_ARGUMENT, "dilation is %lld; it must be 1 for a branch of kind global",
                        static_cast<long long>(given.dilation));
        constexpr std::int64_t max = std::numeric_limits<std::int64_t>::max();
        check_between("first_global", given.first_global, 0, max - 1);
        check_between("global_count", given.global_count, 1, max - given.first_global);
        check_between("global_queries", given.global_queries, 0, 1);
        return;
    }
    check_at_least("left", given.left, -1);
    check_at_least("right", given.right, -1);
    if (given.query_rule == ANNULUS_QUERY_EVERY)
        throw Error(ANNULUS_ERROR_ARGUMENT, "query_rule is every; it must be residue or dilated for a branch of kind "
                                            "window");
}

} // namespace

Branch checked_branch(const annulus_branch *branch) {
    const annulus_branch given = read_branch(branch);
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    check_at_least("segment_length", given.segment_length, 0);
    check_at_least("dilation", given.dilation, 1);
    check_between("first_head", given.first_head, 0, most - 1);
    check_between("head_count", given.head_count, 0, most - given.first_head);
    check_enum("phase_rule", given.phase_rule);
    check_enum("query_rule", given.query_rule);
    check_enum("order", given.order);
    check_enum("kind", given.kind);
    check_fields_of(ANNULUS_BRANCH_WINDOW, given.kind, {{"left", given.left}, {"right", given.right}});
    check_fields_of(ANNULUS_BRANCH_GLOBAL, given.kind,
                    {{"first_global", given.first_global},
                     {"global_count", given.global_count},
                     {"global_queries", given.global_queries}});
    if (given.kind != ANNULUS_BRANCH_SEGMENTS)
        check_without_segments(given);
    check_at_least("residue", given.residue, 0);
    if (given.phase_rule != ANNULUS_PHASE_FIXED && given.residue != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "residue is %lld; it must be 0 where the phase rule is not fixed",
                    static_cast<long long>(given.residue));
    check_at_least("grid_width", given.grid_width, 0);
    if (given.order == ANNULUS_ORDER_LINEAR && given.grid_width != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "grid_width is %lld; it must be 0 in the linear order",
                    static_cast<long long>(given.grid_width));
    // If the segment is the whole sequence (length 0), the width is checked where a plan is made.
    if (given.grid_width != 0 && given.segment_length % given.grid_width != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "grid_width is %lld; it must be 0 or divide the segment length %lld",
                    static_cast<long long>(given.grid_width), static_cast<long long>(given.segment_length));
    return {.segment_length = given.segment_length,
            .dilation = given.dilation,
            .first_head = given.first_head,
            .head_count = given.head_count,
            .phase_rule = given.phase_rule,
            .fixed_residue = given.residue,
            .query_rule = given.query_rule,
            .order = given.order,
            .grid_width = given.grid_width,
            .kind = given.kind,
            .left = given.left,
            .right = given.right,
            .first_global = given.first_global,
            .global_count = given.global_count,
            .has_global_queries = given.global_queries != 0};
}

void write_branch(const Branch &found, std::int32_t index, annulus_branch *branch) {
    annulus_branch result = read_branch(branch);
    // Without the field `kind` another kind would look like segments as long as the sequence.
    constexpr std::size_t size_with_kind = offsetof(annulus_branch, kind) + sizeof result.kind;
    if (found.kind != ANNULUS_BRANCH_SEGMENTS && branch->size < size_with_kind)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "branch %d is of kind %s; size of branch is %zu, and must be at least %zu to hold the kind", index,
                    kind_name(found.kind), branch->size, size_with_kind);
    result.segment_length = found.segment_length;
    result.dilation = found.dilation;
    result.residue = found.fixed_residue;
    result.grid_width = found.grid_width;
    result.first_head = found.first_head;
    result.head_count = found.head_count;
    result.phase_rule = found.phase_rule;
    result.query_rule = found.query_rule;
    result.order = found.order;
    result.left = found.left;
    result.right = found.right;
    result.first_global = found.first_global;
    result.global_count = found.global_count;
    result.kind = found.kind;
    result.global_queries = found.has_global_queries;
    write_sized(branch, result);
}

} // namespace annulus
