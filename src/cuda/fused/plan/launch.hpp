// SPDX-License-Identifier: Apache-2.0
// What the planner of the fused engine emits: launches, each with the part of a grid that it covers and where its
// results go.
#pragma once

#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/schedule/destination.hpp"
#include "engine/engine.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>

namespace annulus {

// Of what a call's launches clear beside their products (rows_to_clear.hpp), a launch's part of so many; 0: none.
struct ClearedPart {
    int index = 0, parts = 0;
};

struct Launch {
    std::size_t grid;             // of the plan's
    std::optional<GridPart> part; // none: all of it
    Destination destination;
    std::int64_t first_partial_row = 0; // of all heads one after the other, where they have partial results in parts
    ClearedPart clears{};
    // While the launch before still runs, for whose end it waits before it writes results: where the kernel can
    // (early_launch.cuh).
    bool begins_early = false;
};

// Whether several grids, or a packed one, share partial results of all rows: the kernels of a packed grid write no
// rows.
bool share_partial_results(const std::vector<PlannedGrid> &grids);

// Whether the launch over the own keys of a call finishes the rows that meet no others, as one grid in linear order
// can.
bool finishes_rows(KeyScope scope, const std::vector<PlannedGrid> &grids);
// Says in the only one of `grids` which rows it leaves as partial results.
void set_rows_left_partial(GridOf what, std::vector<PlannedGrid> &grids);

// Whether the launches over the grids of a whole call, if they leave some of so many rows out, can clear these beside
// their products.
bool clears_beside(const Problem &problem, const std::vector<PlannedGrid> &grids, const KernelShape &shape,
                   std::int64_t rows);

// Where the next launch puts its results: into the partial results, if there are any, which the first one sets.
Destination next_destination(bool has_partial, bool finishes, bool sets);

// How many places so many rows of a head take for partial results, where of `stride` neighbours no more than one has
// any.
constexpr std::int64_t partial_rows_of(std::int64_t rows, int stride) {
    return divide_up(rows, stride);
}

// What a split grid, or a launch of several passes (StoredTurns), has partial results of at a time: several batch
// entries, some heads of one, or some rows of a head.
struct SplitParts {
    int batches = 0, heads = 0, rows = 0; // rows of each head
    int stride = 1;
    std::int64_t all_rows() const { return std::int64_t{batches} * heads * partial_rows_of(rows, stride); }
};
// Rows of batch entries and heads that a split grid has partial results of.
struct SplitRows {
    int batches, heads, rows; // rows of each head
    int stride;               // of so many neighbouring rows of a head no more than one has partial results
    std::size_t row_bytes;    // of the partial results
};
// Whole heads; none where there is no room for one.
std::optional<SplitParts> heads_within(const SplitRows &all, std::size_t room);
// As many rows of a head as there is room for, a multiple of the first of these numbers that they reach; none where
// they reach none.
std::optional<SplitParts> rows_within(const SplitRows &all, std::size_t room,
                                      std::initializer_list<std::int64_t> multiples);
// How many parts of these there are.
std::int64_t count_parts(const SplitParts &parts, const SplitRows &all);

// Bytes for what is stored between two kernels (partial results of a split grid, dS), if the workspace limit leaves
// that much: enough for tiles to fill a GPU.
constexpr std::size_t usual_room = std::size_t{5} << 28;
// The same of dS that one kernel stores and multiplies: of three segments of 16384, so that it can do both at a time.
// Longer ones are done in passes (StoredTurns), whose partial results come out of it, too.
constexpr std::size_t usual_room_of_ds = std::size_t{3} << 29;
// The same of parts of a head's rows, which are there for the memory that they save.
constexpr std::size_t most_room_of_rows = std::size_t{1} << 30;
// What a limit leaves for it where so many bytes are used, or with no limit (0) the usual room.
std::size_t room_within(std::uint64_t limit, std::size_t used);

// use(first, count) for parts of `all`.
template <class Use> void for_parts(int all, int part, const Use &use) {
    for (int first = 0; first < all; first += part)
        use(first, std::min(part, all - first));
}

// The launches over a call's own keys whose branches are split. Two, since they share partial results of all rows,
// which nothing clears before.
inline constexpr Launch split_part_launches[] = {{0, {}, Destination::set_partial},
                                                 {1, {}, Destination::outputs_or_partial_with_partial}};

// In how many grids the branches of a call or of its own keys may be.
constexpr std::size_t most_grids(KeyScope scope) {
    return scope == KeyScope::own_keys ? std::size(split_part_launches) : std::numeric_limits<std::size_t>::max();
}

// The launches of a split grid of a whole call, part after part, where a head has the rows of `window`: the first of
// `grids` sets partial results, or where several leave some, each adds its own after clear(); the last one adds these
// to its own and writes all rows.
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
