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
};

// Whether several grids, or a packed one, share partial results of all rows: the kernels of a packed grid write no
// rows.
bool share_partial_results(const std::vector<PlannedGrid> &grids);

// Whether the launch over the own keys of a call finishes the rows that meet no others, as one grid in linear order
// can.
bool finishes_rows(CallPart part, const std::vector<PlannedGrid> &grids);
// Says in the only one of `grids` which rows it leaves as partial results.
void set_rows_left_partial(GridOf what, std::vector<PlannedGrid> &grids);

// Whether the launches over the grids of a whole call, if they leave some of so many rows out, can clear these beside
// their products.
bool clears_beside(const Problem &problem, const std::vector<PlannedGrid> &grids, const KernelShape &shape,
                   std::int64_t rows);

// Where the next launch puts its results: into the partial results, if there are any, which the first one sets.
Destination next_destination(bool has_partial, bool finishes, bool sets);

// Batch entries and heads of which a split grid has partial results at a time: all heads or one batch entry.
struct HeadParts {
    int batches = 0, heads = 0;
    std::int64_t count() const { return std::int64_t{batches} * heads; } // of heads
};
// None where there is no room for one head.
std::optional<HeadParts> parts_within(std::int64_t batches, int heads, std::size_t bytes_of_head, std::size_t room);
// How many parts of these there are.
std::int64_t count_parts(const HeadParts &parts, std::int64_t batches, int heads);

// Bytes for what is stored between two kernels (partial results of a split grid, dS), if the workspace limit leaves
// that much: enough for tiles to fill a GPU.
constexpr std::size_t usual_room = std::size_t{5} << 28;
// What a limit leaves for it where so many bytes are used, or with no limit (0) the usual room.
std::size_t room_within(std::uint64_t limit, std::size_t used);

// use(first, count) for parts of `all`.
template <class Use> void for_parts(int all, int part, const Use &use) {
    for (int first = 0; first < all; first += part)
        use(first, std::min(part, all - first));
}

// The two launches of a grid over a call's own keys that is split.
inline constexpr Launch split_part_launches[] = {{0, {}, Destination::set_partial},
                                                 {1, {}, Destination::outputs_or_partial_with_partial}};

// The two launches of a split grid of a whole call, part after part: grid 0 sets partial results of `rows` rows a head,
// grid 1 adds them to its own and writes all rows.
template <class Use> void for_split(const HeadParts &parts, int batches, int heads, std::int64_t rows, const Use &use) {
    for_parts(batches, parts.batches, [&](int first_batch, int part_batches) {
        for_parts(heads, parts.heads, [&](int first_head, int part_heads) {
            const GridPart part{first_batch, part_batches, first_head, part_heads};
            const std::int64_t first_row = (std::int64_t{first_batch} * heads + first_head) * rows;
            use(Launch{0, part, Destination::set_partial, first_row});
            use(Launch{1, part, Destination::outputs_with_partial, first_row});
        });
    });
}

} // namespace annulus
