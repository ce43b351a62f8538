// SPDX-License-Identifier: Apache-2.0
// The output of the fused engine's planner: launches, each with its part of a grid and the destination of its results.
//
// plan_forward() and plan_backward() take the first of these ways that is possible. Before them, backward tries to
// store dS of several branches, each in launches of its own (plan_storing_branches()). Storing must be faster than ways
// 1 and 3.
//
// 1. Split branches (branch_split.hpp): earlier launches leave partial results, and the last one adds them and writes
//    the rows. The split must take less time than one grid, unless one grid cannot take the branches. A whole call
//    makes its partial results in parts. The parts are the largest that fit into the workspace limit. If none fit and
//    one grid cannot take the branches, they are the parts that need the least memory. In backward each side is split
//    by itself.
// 2. Stored dS (stored_ds_plan.hpp), only in backward: one branch, and the limit has room for enough dS.
// 3. Launches over one grid after the other. Several grids of a whole call add up partial results. If possible, the
// last
//    launch finishes its rows (finish_with_last()); if these are all rows, only rows of the other launches have partial
//    results. This way has no parts, so it may exceed the limit. Grids with few tiles get range parts
//    (range_parts.hpp), if the limit has room for them.
//
// "A whole call" is an executable over all keys (KeyScope). A call over several sequences takes only way 3. An
// executable over keys of other ranks never takes way 1, since its results are partial anyway. If two grids save time,
// split_ranges_elsewhere() replaces its only grid by two.
#pragma once

#include "core/summed_rows.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/schedule/destination.hpp"
#include "engine/engine.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

namespace annulus {

// Part `index` of `parts` of the rows that a call's launches clear beside their products (rows_to_clear.hpp). parts =
// 0: the launch clears nothing.
struct ClearedPart {
    int index = 0, parts = 0;
};

struct Launch {
    std::size_t grid;             // index among the plan's grids
    std::optional<GridPart> part; // none: the whole grid
    Destination destination;
    std::int64_t first_partial_row = 0; // counted over all heads, if partial results are made in parts
    ClearedPart clears{};
    // Programmatic dependent launch: the kernel begins while the launch before still runs, and waits for its end before
    // it writes results. Ignored if the kernel does not support it (early_launch.cuh).
    bool begins_early = false;
};

// True if the grids share partial results: if there are several, or if the only one is packed or has range
// parts. The kernels of such a grid do not write final rows.
bool share_partial_results(const std::vector<PlannedGrid> &grids);

// True if rows have to be cleared before the launches, which write only rows of the grids. `are_all_partial`: every row
// of the call reaches the caller's tensors by way of partial results, also the rows that another call writes later.
bool must_clear(const std::vector<PlannedGrid> &grids, bool are_all_partial);

// True if the launches over a call's own keys may finish the rows that meet no other keys. If some branch is global
// they may not: then other ranks may have keys or queries for any row.
inline bool may_finish_rows(const Plan &plan, KeyScope scope) {
    return scope == KeyScope::own_keys && !plan.has_global_positions();
}
// True if the launch over a call's own keys does so. One grid in linear order can do that.
bool finishes_rows(const Plan &plan, KeyScope scope, const std::vector<PlannedGrid> &grids);
// Sets in the only one of `grids` which rows it leaves as partial results.
void set_rows_left_partial(GridResult what, std::vector<PlannedGrid> &grids);

// True if the launches over the grids of a whole call can clear, beside their products, the rows that they leave out.
// `rows` is the number of rows of a head.
bool clears_beside(const Problem &problem, const std::vector<PlannedGrid> &grids, const KernelShape &shape,
                   std::int64_t rows);

// The launches of a side whose last launch finishes its rows.
struct FinishingLaunches {
    std::vector<Destination> destinations; // of each grid's launch
    std::optional<SummedRows> summed;      // the rows that have partial results; none: all rows
};

// Puts the grid last that fills the most rows and has no range parts. Its launch then adds the partial results of the
// other grids to its own results, and writes its rows to the caller's tensors. That saves a pass over partial results
// of all rows. If it has all of the `rows` of a head, only rows of the other grids have partial results. Otherwise the
// other grids must set the partial results of each row. Returns none, and changes nothing, if they do not, if a grid
// has a curve or several sequences, or if no grid can come last.
std::optional<FinishingLaunches> finish_with_last(const Problem &problem, const Window &rows,
                                                  std::vector<PlannedGrid> &grids);

// Returns where the next launch puts its results. `sets`: it is the first launch to write partial results, and sets
// them.
Destination next_destination(bool has_partial, bool finishes, bool sets);

// Returns how many partial results `rows` rows of a head need. Among `stride` consecutive rows at most one has a
// partial result.
constexpr std::int64_t partial_rows_of(std::int64_t rows, int stride) {
    return divide_up(rows, stride);
}

// The part of the rows for which there are partial results at a time: several batch entries, some heads of one entry,
// or some rows of a head. A split grid, several passes over stored dS (StoredDs) and several branches that store dS use
// it. With SideGrids::summed, `rows` is the number of a head's rows that have partial results.
struct SplitParts {
    int batches = 0, heads = 0, rows = 0; // `rows` are of each head
    int stride = 1;
    std::int64_t all_rows() const { return std::int64_t{batches} * heads * partial_rows_of(rows, stride); }
};

// True if a workspace of `bytes` is within the limit (0: none).
constexpr bool is_within_limit(std::uint64_t limit, std::size_t bytes) {
    return limit == 0 || bytes <= limit;
}
// Returns the bytes that a limit leaves if `used` bytes are used. Returns tuning::usual_room for no limit (0).
std::size_t room_within(std::uint64_t limit, std::size_t used);

// Calls use(first, count) for consecutive parts of `all`.
template <class Use> void for_parts(int all, int part, const Use &use) {
    for (int first = 0; first < all; first += part)
        use(first, std::min(part, all - first));
}

// The launches over the own keys with split branches. There are only two: a third one would add to partial results,
// which nothing has cleared.
inline constexpr Launch own_keys_split_launches[] = {{0, {}, Destination::set_partial},
                                                     {1, {}, Destination::outputs_or_partial}};

// Returns how many grids may share the branches of an executable.
constexpr std::size_t max_grids(KeyScope scope) {
    return scope == KeyScope::own_keys ? std::size(own_keys_split_launches) : std::numeric_limits<std::size_t>::max();
}

// Calls use(launch) for the launches of a split grid of a whole call, part after part. A head has the rows of `window`.
// With two grids the first one sets partial results. With more grids, clear() comes first and each grid but the last
// adds its partial results. The last grid adds the partial results to its own results and writes all rows.
template <class Clear, class Use>
void for_split(std::size_t grids, const SplitParts &parts, std::int64_t batches, int heads, const Window &window,
               const Clear &clear, const Use &use) {
    const auto rows = static_cast<int>(window.length);
    for_parts(static_cast<int>(batches), parts.batches, [&](int first_batch, int part_batches) {
        for_parts(heads, parts.heads, [&](int first_head, int part_heads) {
            for_parts(rows, parts.rows, [&](int first_row, int part_rows) {
                GridPart part{first_batch, part_batches, first_head, part_heads};
                if (part_rows < rows)
                    part.rows = {window.start + first_row, part_rows};
                const std::int64_t first =
                    (std::int64_t{first_batch} * heads + first_head) * partial_rows_of(rows, parts.stride) + first_row;
                if (grids > 2)
                    clear();
                for (std::size_t i = 0; i + 1 < grids; ++i)
                    use(Launch{i, part, grids > 2 ? Destination::add_to_partial : Destination::set_partial, first});
                use(Launch{grids - 1, part, Destination::outputs_with_partial, first});
            });
        });
    });
}

} // namespace annulus
