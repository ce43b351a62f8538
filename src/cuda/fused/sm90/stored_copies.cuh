// SPDX-License-Identifier: Apache-2.0
// What the producer's warps do for tiles of queries, for which stored dS is multiplied.
//
// In shared memory, a stage of such a tile has halves of four images, of 32 keys. Stages and blocks of 64 rows of K
// take the places of the tile's row blocks and of the ranges' stages (BackwardShared). So the next tile's row blocks
// can be copied meanwhile, as ever. A warp that uses the stages of ranges must wait until the other kind of tile is
// done with them.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/backward_shared.cuh"
#include "cuda/fused/sm90/copy_permuted_rows.cuh"
#include "cuda/fused/sm90/other_work.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

// The tile scheduler of a launch that stores dS and multiplies it. It also publishes to other CTAs which tiles of this
// CTA have ended: then no warp writes or reads their dS any more.
template <class Traits> class StoredTileFinder {
  public:
    __device__ __forceinline__ StoredTileFinder(const BackwardParams &params, BackwardShared<Traits> &shared)
        : params_(params), shared_(shared) {}

    // Finds the next tile, and waits until the tiles that it needs have ended. Returns false if no tile is left.
    __device__ __forceinline__ bool take(const PipelineState<tile_slots> &at) {
        const StoredTurns &turns = params_.stored_d_s.turns;
        for (;;) {
            const int number = turns.launch_turns.first + static_cast<int>(take_next(params_));
            if (number >= turns.launch_turns.end) {
                publish_ended(at.count, true);
                return false;
            }
            const StoredTurn turn = turns.turn(number);
            if (!turns.has_group(turn))
                continue;
            const bool is_found = turns.has_cell(turn) && find(turn, at.slot());
            while (!is_ready(turn)) // this may wait for the CTA's current tile
                publish_ended(at.count, false);
            if (is_found) {
                if (is_first_lane())
                    shared_.turns[at.slot()] = turn;
                return true;
            }
            finish(turn);
        }
    }

    // Publishes which of the first `end` tiles have ended. If it `waits`, it publishes all of them, as soon as they
    // have.
    __device__ __forceinline__ void publish_ended(unsigned end, bool waits) {
        for (; published_count_ < end; ++published_count_) {
            const PipelineState<tile_slots> next_there{published_count_ + tile_slots};
            Mbarrier &empty = shared_.tile_empty[next_there.slot()];
            if (waits)
                empty.wait(next_there.parity_to_fill());
            else if (!__all_sync(~0u, empty.has_ended(next_there.parity_to_fill())))
                return;
            finish(shared_.turns[next_there.slot()]);
        }
    }

  private:
    __device__ __forceinline__ static bool is_first_lane() { return threadIdx.x % warp_threads == 0; }

    __device__ __forceinline__ bool find(const StoredTurn &turn, int slot) {
        const StoredDs &stored = params_.stored_d_s;
        // The last launch may have fewer cells.
        if (stored.cells_of_slice.remainder(turn.cell) >= stored.segments * stored.heads * stored.batches)
            return false;
        if (!turn.multiplies)
            return find_storing_tile<Traits::range_block_rows>(params_, turn, shared_.tiles[slot]);
        StoredTile tile;
        const bool is_found = tile.find(params_.query_work, turn);
        if (is_first_lane()) {
            shared_.stored_tiles[slot] = tile;
            shared_.stored_stages_before[slot] = stage_count_;
            shared_.tiles[slot].ranges = 0;
        }
        if (is_found)
            stage_count_ += 2 * static_cast<unsigned>(tile.end_key_block - tile.first_key_block);
        return is_found;
    }

    __device__ __forceinline__ unsigned *count_of(int group, bool multiplies) const {
        return params_.stored_d_s.done + 2 * params_.stored_d_s.turns.place(group) + multiplies;
    }
    __device__ __forceinline__ bool have_ended(int group, bool multiplying, int needed) const {
        unsigned done;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(count_of(group, multiplying)) : "memory");
        return __all_sync(~0u, done >= static_cast<unsigned>(needed));
    }
    __device__ __forceinline__ bool is_ready(const StoredTurn &turn) const {
        const StoredTurns &turns = params_.stored_d_s.turns;
        return have_ended(turn.group, !turn.multiplies, turns.needed(turn)) &&
               (!turns.adds(turn) || have_ended(turns.group_before(turn), false, turns.needed_before(turn)));
    }
    // Publishes that a turn has ended. Bulk copies read and write dS, and the tile's barriers have shown that they are
    // done.
    __device__ __forceinline__ void finish(const StoredTurn &turn) const {
        if (!is_first_lane())
            return;
        fence_async_proxies();
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count_of(turn.group, turn.multiplies)) : "memory");
    }

    const BackwardParams &params_;
    BackwardShared<Traits> &shared_;
    unsigned published_count_ = 0, stage_count_ = 0; // tiles published; stages of the tiles found
};

template <class Traits>
__device__ __forceinline__ void find_stored_tiles(const BackwardParams &params, BackwardShared<Traits> &shared) {
    StoredTileFinder<Traits> finder(params, shared);
    // Once a slot is free, the tile that had it has ended.
    const auto begin = [&](const PipelineState<tile_slots> &at) { finder.publish_ended(max(at.count, 1U) - 1, true); };
    const auto take = [&](const PipelineState<tile_slots> &at) { return finder.take(at); };
    NoOtherWork nothing;
    find_tiles_by(
        shared, begin, take, [](const PipelineState<tile_slots> &) {}, nothing);
}

// The warp that copies row blocks: hands their slot to the stages of the tile.
template <class Traits, class OtherWork>
__device__ __forceinline__ void hand_slot_to_stored_d_s(BackwardShared<Traits> &shared,
                                                        const PipelineState<tile_slots> &at,
                                                        OtherWork &&do_other_work) {
    const PipelineState<Traits::row_block_slots> slot{at.count};
    work_while_waiting(shared.row_block_empty[slot.slot()], slot.parity_to_fill(), do_other_work);
    if (threadIdx.x % warp_threads == 0)
        for (int i = 0; i < 2; ++i) // for q_or_k, and for v_or_d_o
            shared.row_block_full[slot.slot()].arrive();
}

// Copies images and K, by two warps: one copies the first half of each row block of keys, the other the second half.
// The first warp also copies all 64 rows of K. If rows are permuted, each warp copies its own half of K.
template <class Traits> class StoredCopies {
  public:
    __device__ __forceinline__ StoredCopies(const BackwardParams &params, BackwardShared<Traits> &shared, int half)
        : params_(params), shared_(shared), half_(half) {}

    // Waits until the stages of ranges hold no K that is still to be read.
    template <class Wait> __device__ __forceinline__ void wait_until_stages_are_free(const Wait &wait) const {
        if constexpr (Traits::stores_d_s)
            for (unsigned i = 0; i < Traits::stored_stages; ++i) {
                const Place before{place_.count + i};
                wait(shared_.stored_empty[before.slot()], before.parity_to_fill());
            }
    }

    // Copies a tile's images and K. One thread calls it. `range` is the next stage of ranges.
    __device__ __forceinline__ void copy(const PipelineState<tile_slots> &at,
                                         const PipelineState<Traits::stages> &range) {
        if constexpr (Traits::stores_d_s) {
            const StoredTile &tile = shared_.stored_tiles[at.slot()];
            const int row = tile.first_key - params_.query_work.first_range_row;
            const int residue = row % tile.stride, index = row / tile.stride;
            const CUtensorMap &map = params_.k[residue >= params_.query_work.longer_residues[0]];
            const int head = tile.head / params_.heads_of_kv_head, batch = tile.batch;
            const std::uint32_t all_keys = shared_.stored_keys(slot_of(at));
            const auto wait = [](const Mbarrier &barrier, unsigned parity) { barrier.wait(parity); };
            for_each_stage(at, range, wait, [&](int key_block, Mbarrier &full, unsigned bytes, const auto &load) {
                full.arrive_expecting(half_ == 0 ? bytes + Traits::row_block_bytes : bytes);
                load();
                if (half_ == 0)
#pragma unroll
                    for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                        tma_load(keys(all_keys) + chunk * row_block_rows * swizzled_row_bytes, map, full, chunk * 64,
                                 index + key_block * row_block_rows, residue, head, batch);
            });
        }
    }

    // Does the same if rows are permuted. A whole warp calls it.
    __device__ __forceinline__ void copy_permuted_rows(const PipelineState<tile_slots> &at,
                                                       const PipelineState<Traits::stages> &range,
                                                       CopiesInFlight &copies) {
        if constexpr (Traits::stores_d_s) {
            using Element = typename Traits::Element;
            const StoredTile &tile = shared_.stored_tiles[at.slot()];
            const BackwardWork &work = params_.query_work;
            const TensorRows &rows = params_.k_rows;
            const auto *const row_0 = rows.first_row<const Element>(tile.batch, tile.head / params_.heads_of_kv_head);
            const std::uint32_t all_keys = shared_.stored_keys(slot_of(at));
            const auto wait = [&](const Mbarrier &barrier, unsigned parity) { copies.wait(barrier, parity); };
            for_each_stage(at, range, wait, [&](int key_block, Mbarrier &full, unsigned bytes, const auto &load) {
                const RowsOfLanes<Traits::stored_keys> own([&](int i) {
                    const int number = min(key_block * row_block_rows + half_ * Traits::stored_keys + i, tile.keys - 1);
                    return work.template position_of<Traits::order>(tile.first_key + number * tile.stride) -
                           work.first_range_row;
                });
                if (threadIdx.x % warp_threads == 0) {
                    full.arrive_expecting(bytes);
                    load();
                }
                annulus::copy_permuted_rows<Traits::head_dim, row_block_rows>(
                    keys(all_keys) + half_ * Traits::stored_keys * swizzled_row_bytes, row_0, rows.row,
                    params_.head_dim, own, [](int, int) {});
                copies.add(full);
            });
        }
    }

  private:
    using Place = PipelineState<Traits::stored_stages>;

    __device__ __forceinline__ static int slot_of(const PipelineState<tile_slots> &at) {
        return PipelineState<Traits::row_block_slots>{at.count}.slot();
    }
    // Returns where K of the current row block goes. `all` is where the tile's K begins.
    __device__ __forceinline__ std::uint32_t keys(std::uint32_t all) const {
        return all + BackwardShared<Traits>::stored_keys_offset(place_.count);
    }

    // Calls use(row block of keys, full, bytes of images, load) for each of the warp's stages. load() copies the
    // images.
    template <class Wait, class Use>
    __device__ __forceinline__ void for_each_stage(const PipelineState<tile_slots> &at,
                                                   const PipelineState<Traits::stages> &range, const Wait &wait,
                                                   const Use &use) {
        constexpr int last_blocks = 32; // some 30,000 cycles of the matrix units
        constexpr int consumer_row_blocks = Traits::stored_row_blocks;
        const StoredTile &tile = shared_.stored_tiles[at.slot()];
        const StoredDs &stored = params_.stored_d_s;
        const PipelineState<Traits::row_block_slots> slot{at.count};
        wait(shared_.row_block_full[slot.slot()], slot.parity_to_empty());
        for (unsigned i = 0; i < Traits::stages; ++i) {
            const PipelineState<Traits::stages> before{range.count + i};
            wait(shared_.range_empty[before.slot()], before.parity_to_fill());
        }
        fence_async_proxies();
        const bool signals = half_ == 0 && threadIdx.x % warp_threads == 0;
        const int first_keys = tile.first_key_block, end_keys = tile.end_key_block;
        const int first = tile.first_row_block, seen_by_all = tile.seen_by_all;
        const int row_blocks = min(StoredDs::row_blocks_of_tile, tile.row_blocks() - first);
        const std::uint32_t target = shared_.stored_images(slot.slot());
        const std::uint8_t *images =
            stored.halves(tile.batch, tile.head, tile.segment, first_keys, shared_.turns[at.slot()].pass).first_query;
        int in_row = stored.queries;           // images of a row block of keys
        if (signals && first_keys == end_keys) // a window may have no key of the class
            shared_.tile_ending[at.slot()].arrive();
        for (int key_block = first_keys; key_block < end_keys; ++key_block, place_.count += 2) {
            if (signals && key_block == max(end_keys - last_blocks, first_keys))
                shared_.tile_ending[at.slot()].arrive();
            const Place place{place_.count + half_};
            const int hidden = max(key_block - seen_by_all - first, 0);
            const std::uint8_t *source = images + (half_ * in_row + first) * StoredDs::half_bytes;
            Mbarrier &full = shared_.stored_full[place.slot()];
            wait(shared_.stored_empty[place.slot()], place.parity_to_fill());
            use(key_block, full, (row_blocks - hidden) * StoredDs::half_bytes, [&] {
#pragma unroll
                for (int i = 0; i < StoredDs::row_blocks_of_tile; i += consumer_row_blocks) {
                    const int begin = max(i, hidden), end = min(i + consumer_row_blocks, row_blocks);
                    if (begin < end)
                        bulk_load(target + BackwardShared<Traits>::stored_image_offset(place.slot(), begin),
                                  source + begin * StoredDs::half_bytes, (end - begin) * StoredDs::half_bytes, full);
                }
            });
            // The images of the next row block of keys. It may have one less, since causality hides one more.
            images += in_row * StoredDs::image_bytes;
            if (stored.leaves_out_hidden() && key_block >= seen_by_all) {
                --in_row;
                images -= StoredDs::half_bytes;
            }
        }
    }

    const BackwardParams &params_;
    BackwardShared<Traits> &shared_;
    const int half_;
    Place place_;
};

} // namespace annulus
