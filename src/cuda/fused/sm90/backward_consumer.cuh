// SPDX-License-Identifier: Apache-2.0
// The consumer warpgroups of the fused backward kernels. Each computes a row block of 64 rows.
//
// The class has two pipelines over the blocks of a range. process_range() ends a block before it begins the next one.
// process_range_overlapped() issues a block's last product with the first products of the next block. Both stand in one
// class, and this file is long, because they share everything else: registers, stages, barriers, masks and epilogue.
#pragma once

#include "cuda/device/early_launch.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/fused/math/backward_epilogue.cuh"
#include "cuda/fused/math/gradients.cuh"
#include "cuda/fused/math/scores.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/backward_shared.cuh"
#include "cuda/fused/sm90/products.cuh"
#include "cuda/fused/sm90/reduce_partial_rows.cuh"
#include "cuda/fused/sm90/stored_product.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>
#include <type_traits>

namespace annulus {

template <class Traits> class BackwardConsumer {
  public:
    __device__ __forceinline__ BackwardConsumer(const BackwardParams &params, BackwardShared<Traits> &shared,
                                                int row_block)
        : params_(params), shared_(shared), row_block_(row_block) {}

    __device__ __forceinline__ void run() {
        for (PipelineState<tile_slots> at;; ++at.count) {
            const PipelineState<Traits::row_block_slots> slot{at.count};
            shared_.tile_full[at.slot()].wait(at.parity_to_empty());
            const OwnTile &tile = shared_.tiles[at.slot()];
            if (tile.ranges < 0)
                break;
            shared_.row_block_full[slot.slot()].wait(slot.parity_to_empty());
            if constexpr (Traits::stores_d_s) {
                if (shared_.turns[at.slot()].multiplies) {
                    StoredProduct<Traits>(params_, shared_, row_block_)
                        .find_d_q(shared_.stored_tiles[at.slot()], slot.slot(),
                                  shared_.stored_stages_before[at.slot()]);
                } else {
                    find_gradients(tile, slot.slot(), shared_.turns[at.slot()].pass);
                    if (thread_of_warpgroup() % warp_threads == 0)
                        bulk_store_wait(); // the tile ends when its dS is in memory
                }
            } else {
                find_gradients(tile, slot.slot());
            }
            __syncwarp();
            if (thread_of_warpgroup() % warp_threads == 0) {
                shared_.row_block_empty[slot.slot()].arrive();
                shared_.tile_empty[at.slot()].arrive();
            }
        }
    }

  private:
    using Element = typename Traits::Element;
    using OwnTile = Tile<Traits::consumers>;
    using OwnRange = Range<Traits::consumers>;
    static constexpr int range_block_rows = Traits::range_block_rows;
    static constexpr int columns = Traits::head_dim;
    static constexpr int warp_image_bytes = StoredDs::image_bytes / 4; // a warp's rows of an image of dS
    static constexpr int row_blocks_bytes = Traits::consumers * Traits::row_block_bytes;
    static constexpr std::uint32_t to_v_or_d_o = Traits::stage_bytes / 16, stage_distance = 2 * to_v_or_d_o;
    using BlockMask = Mask<Traits::rows_are_keys, range_block_rows>;

    // What a thread holds in registers during a tile.
    struct Registers {
        // Descriptors: of the row block's rows, and of the first stage's rows. A stage's rows are read along the rows
        // and across them.
        const std::uint32_t own_q_or_k, own_v_or_d_o, q_or_k, v_or_d_o;
        const int slot; // slot of the row block
        float d_q_or_k[Traits::has_d_q_or_k ? columns / 2 : 1], d_v[Traits::has_d_v ? columns / 2 : 1];
        float s[range_block_rows / 2], d_p[Traits::has_d_q_or_k ? range_block_rows / 2 : 1];
        std::uint32_t p[range_block_rows / 4], d_s[Traits::has_d_q_or_k ? range_block_rows / 4 : 1];
        // log2 of the multiplicities of its two columns of every eight. If dS is stored, there is one branch, and -0
        // adds nothing.
        float weight[2] = {-0.f, -0.f};
        // In use if blocks overlap, which leaves registers for them.
        RowStatistic lse_log2, delta;
        // If blocks overlap: whether there is dS of the block before. Its rows are one stage before the current one.
        bool has_pending = false;
        std::uint8_t *image = nullptr; // if dS is stored: the warp's rows of the next block's image
        // The thread's elements of the row block's rows, if the consumer holds them.
        std::uint32_t held_q_or_k[Traits::holds_own_rows ? columns / 4 : 1],
            held_v_or_d_o[Traits::holds_own_rows ? columns / 4 : 1];

        __device__ __forceinline__ Registers(BackwardShared<Traits> &shared, std::uint32_t own_q_or_k_rows,
                                             std::uint32_t own_v_or_d_o_rows, int row_block_slot)
            : own_q_or_k(smem_descriptor_start(own_q_or_k_rows)),
              own_v_or_d_o(smem_descriptor_start(own_v_or_d_o_rows)),
              q_or_k(smem_descriptor_start(shared_address(shared.range_rows[0].q_or_k),
                                           range_block_rows * swizzled_row_bytes)),
              v_or_d_o(q_or_k + to_v_or_d_o), slot(row_block_slot) {
            clear(d_q_or_k);
            clear(d_v);
            if constexpr (Traits::holds_own_rows) {
                load_rows_of_product(held_q_or_k, own_q_or_k_rows);
                load_rows_of_product(held_v_or_d_o, own_v_or_d_o_rows);
            }
        }
    };

    // `pass`: the turn's pass, if dS is stored (StoredTurns).
    __device__ __forceinline__ void find_gradients(const OwnTile &tile, int slot, int pass = 0) {
        const RowBlock &row_block = tile.row_block[own_row_block()];
        const std::uint32_t own_q_or_k_rows =
            shared_address(shared_.own_rows[slot].q_or_k) + row_block_ * Traits::row_block_bytes;
        const std::uint32_t own_v_or_d_o_rows =
            Traits::has_d_q_or_k ? own_q_or_k_rows + row_blocks_bytes : own_q_or_k_rows;
        Registers x(shared_, own_q_or_k_rows, own_v_or_d_o_rows, slot);
        if constexpr (Traits::overlaps) {
            x.lse_log2 = load_rows(shared_.lse_log2[slot]);
            x.delta = load_rows(shared_.delta[slot]);
        }
        if (Traits::stores_d_s && uniform(tile.ranges) > 0 && uniform(row_block.rows) > 0)
            find_images(tile, pass);
        // The compiler knows that these bounds of loops are uniform. It then takes the stage for uniform, too, and
        // addresses of operands need not pass through vector registers.
        const int ranges = uniform(tile.ranges);
        for (int i = 0; i < ranges; ++i) {
            const OwnRange &range = tile.range[i];
            const SeenBlocks &own = range.part[own_row_block()];
            const int full = uniform(own.full_blocks), blocks = uniform(own.blocks), all_blocks = uniform(range.blocks);
            if constexpr (Traits::overlaps)
                process_range_overlapped(x, row_block, range, full, blocks, all_blocks);
            else
                process_range(x, row_block, range, full, blocks, all_blocks);
        }
        if constexpr (Traits::overlaps)
            finish_pending(x);
        if (row_block.rows == 0 || (params_.skips_empty && !tile.meets_any(own_row_block())))
            return;
        sync_warpgroup(own_row_block()); // no warp's products read the row block's rows any more
        if constexpr (!Traits::stores_d_s)
            grid_dependency_wait(); // results here may add to partial results of the launch before, or overwrite them
        using PartialStore = std::conditional_t<Traits::stores_d_s, ReducePartialRows, StorePartialRows>;
        const BackwardEpilogue<Element, columns, Traits::rows_are_keys, Traits::order, FragmentThread<>, RowBlock,
                               PartialStore>
            epilogue(params_,
                     Traits::stores_d_s ? params_.stored_d_s.destination(params_.destination, pass)
                                        : params_.destination,
                     tile.batch, tile.partial_batch, tile.head, row_block);
        if constexpr (Traits::has_d_q_or_k)
            epilogue.write(x.d_q_or_k, params_.scale, own_q_or_k_rows, params_.d_q_or_k, params_.partial_d_q_or_k);
        if constexpr (Traits::has_d_v)
            epilogue.write(x.d_v, 1.f, own_v_or_d_o_rows, params_.d_v, params_.partial_d_v);
    }

    // Processes the blocks of a range, one after the other.
    __device__ __forceinline__ void process_range(Registers &x, const RowBlock &row_block, const OwnRange &range,
                                                  int full, int blocks, int all_blocks) {
        if constexpr (Traits::stores_d_s) // a block is an image; the first queries' block comes first
            x.image = find_image(quotient_up(range.count, range_block_rows) - blocks);
        else
            load_weights(range, FragmentThread<>().column(), x.weight);
        skip_blocks(all_blocks - blocks);
        int at = blocks - 1;
#pragma unroll 1
        for (; at >= full; --at)
            process_block<true>(x, row_block, range, at);
        if (!Traits::stores_d_s && uniform(range.hides_first)) // dS of windows is not stored
            return skip_blocks(at + 1);
#pragma unroll 1
        for (; at >= 0; --at)
            process_block<false>(x, row_block, range, at);
    }

    // Processes block `at` of a range. Reads of shared memory wait for the products that a warp has issued, so they
    // come before the products. What is needed after S is read before S. Delta takes registers, so it is read before
    // the product with P or, if there is none, before S.
    template <bool hides>
    __device__ __forceinline__ void process_block(Registers &x, const RowBlock &row_block, const OwnRange &range,
                                                  int at) {
        const int stage = stage_.slot();
        const BlockMask mask = find_mask<hides>(row_block, range, at);
        const auto load_delta = [&] { return load_statistic(shared_.delta, x.slot, mask, stage); };
        decltype(load_delta()) delta;
        wait_for_block();
        const auto lse_log2 = load_statistic(shared_.lse_log2, x.slot, mask, stage);
        if constexpr (Traits::has_d_q_or_k && !Traits::has_d_v)
            delta = load_delta();
        start_products(x);
        wgmma_wait<Traits::has_d_q_or_k>();
        fence_registers(x.s);
        find_probabilities<hides>(x.s, params_.scale_log2, x.weight, lse_log2, mask);
        if constexpr (hides)
            clear_first(x.s, row_block, range, at);
        if constexpr (Traits::has_d_v)
            pack<Element>(x.p, x.s);
        if constexpr (hides)
            clear_absent_rows(range.count - at * range_block_rows, stage);
        if constexpr (Traits::has_d_q_or_k && Traits::has_d_v)
            delta = load_delta();
        look_ahead();
        if constexpr (Traits::has_d_v)
            add_product<Element, columns, range_block_rows>(x.d_v, x.p, x.v_or_d_o + stage * stage_distance);
        if constexpr (Traits::has_d_q_or_k) {
            wgmma_wait<Traits::has_d_v>();
            fence_registers(x.d_p);
            if constexpr (hides)
                clear_first(x.d_p, row_block, range, at);
            find_block_d_s<hides>(x, mask, delta,
                                  [&](int j, const float2 &two) { x.d_s[j / 2] = pack_two<Element>(two.x, two.y); });
            if constexpr (Traits::stores_d_s)
                stage_d_s(x.d_s);
            add_product<Element, columns, range_block_rows>(x.d_q_or_k, x.d_s, x.q_or_k + stage * stage_distance);
            if constexpr (Traits::stores_d_s)
                store_d_s(x);
        }
        wgmma_wait<0>();
        if constexpr (Traits::has_d_v) {
            fence_registers(x.d_v);
            fence_registers(x.p);
        }
        if constexpr (Traits::has_d_q_or_k) {
            fence_registers(x.d_q_or_k);
            fence_registers(x.d_s);
        }
        release(stage);
        ++stage_.count;
    }

    // Processes a range if row blocks are of queries: the last product of a block is issued with the first ones of the
    // next block.
    __device__ __forceinline__ void process_range_overlapped(Registers &x, const RowBlock &row_block,
                                                             const OwnRange &range, int full, int blocks,
                                                             int all_blocks) {
        int at = blocks - 1;
        load_weights(range, FragmentThread<>().column(), x.weight);
        if (blocks < all_blocks) {
            finish_pending(x);
            skip_blocks(all_blocks - blocks);
        }
        if (at < 0)
            return;
        if (!x.has_pending) {
            process_overlapped_block<true, true>(x, row_block, range, at--);
            x.has_pending = true;
        }
#pragma unroll 1
        for (; at >= full; --at)
            process_overlapped_block<true, false>(x, row_block, range, at);
        if (uniform(range.hides_first)) {
            if (at >= 0)
                finish_pending(x);
            return skip_blocks(at + 1);
        }
#pragma unroll 1
        for (; at >= 0; --at)
            process_overlapped_block<false, false>(x, row_block, range, at);
    }

    template <bool hides, bool is_first>
    __device__ __forceinline__ void process_overlapped_block(Registers &x, const RowBlock &row_block,
                                                             const OwnRange &range, int at) {
        constexpr int pending_products = is_first ? 0 : 1;
        const int stage = stage_.slot();
        wait_for_block();
        start_products(x);
        look_ahead();
        if constexpr (!is_first)
            add_product<Element, columns, range_block_rows>(x.d_q_or_k, x.d_s,
                                                            x.q_or_k + pending_stage() * stage_distance);
        const BlockMask mask = find_mask<hides>(row_block, range, at);
        wgmma_wait<pending_products + 1>();
        fence_registers(x.s);
        find_probabilities<hides>(x.s, params_.scale_log2, x.weight, x.lse_log2, mask);
        if constexpr (hides)
            clear_first(x.s, row_block, range, at);
        wgmma_wait<pending_products>();
        fence_registers(x.d_p);
        if constexpr (hides)
            clear_first(x.d_p, row_block, range, at);
        find_block_d_s<hides>(x, mask, x.delta, [&](int j, const float2 &two) {
            x.d_p[j] = two.x;
            x.d_p[j + 1] = two.y;
        });
        if constexpr (!is_first)
            end_pending(x);
        if constexpr (hides)
            clear_absent_rows(range.count - at * range_block_rows, stage);
        pack<Element>(x.d_s, x.d_p);
        ++stage_.count;
    }

    __device__ __forceinline__ int pending_stage() const {
        return PipelineState<Traits::stages>{stage_.count - 1}.slot();
    }
    __device__ __forceinline__ void end_pending(Registers &x) {
        wgmma_wait<0>();
        fence_registers(x.d_q_or_k);
        fence_registers(x.d_s);
        release(pending_stage());
    }
    __device__ __forceinline__ void finish_pending(Registers &x) {
        if (!x.has_pending)
            return;
        add_product<Element, columns, range_block_rows>(x.d_q_or_k, x.d_s, x.q_or_k + pending_stage() * stage_distance);
        end_pending(x);
        x.has_pending = false;
    }

    // Loads the thread's elements of the row block's rows, in the order in which products read them from registers.
    __device__ __forceinline__ static void load_rows_of_product(std::uint32_t (&x)[columns / 4], std::uint32_t rows) {
        const FragmentThread<> own;
        const std::uint32_t first =
            rows + swizzled_offset(row_block_rows, own.strip() * 16 + own.lane() % 16, own.lane() / 16);
#pragma unroll
        for (int i = 0; i < columns / 16; ++i) {
            std::uint32_t sixteen_columns[4];
            load_matrices<false>(sixteen_columns, first ^ i * 32);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                x[4 * i + j] = sixteen_columns[j];
        }
    }

    // Starts S, and dP.
    __device__ __forceinline__ void start_products(Registers &x) {
        const std::uint32_t distance = stage_.slot() * stage_distance;
        if constexpr (Traits::holds_own_rows) {
            multiply_rows<Element, columns, range_block_rows>(x.s, x.held_q_or_k, x.q_or_k + distance);
            multiply_rows<Element, columns, range_block_rows>(x.d_p, x.held_v_or_d_o, x.v_or_d_o + distance);
        } else {
            multiply_rows<Element, columns, range_block_rows>(x.s, x.own_q_or_k, x.q_or_k + distance);
            if constexpr (Traits::has_d_q_or_k)
                multiply_rows<Element, columns, range_block_rows>(x.d_p, x.own_v_or_d_o, x.v_or_d_o + distance);
        }
    }

    // Returns the mask of block `at` of a range.
    template <bool hides>
    __device__ __forceinline__ BlockMask find_mask(const RowBlock &row_block, const OwnRange &range, int at) const {
        BlockMask mask{FragmentThread<>().column(), {}};
        if constexpr (hides)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                mask.visible_count[r] =
                    (params_.is_bounded()
                         ? range.template visible<Traits::rows_are_keys>(row_block.position(FragmentThread<>().row(r)))
                         : range.count) -
                    at * range_block_rows;
        return mask;
    }

    // Clears the elements of P, or of dP, whose columns a window hides because they are first rows of the range. If
    // both are 0, dS is 0.
    template <int count>
    __device__ __forceinline__ static void clear_first(float (&x)[count], const RowBlock &row_block,
                                                       const OwnRange &range, int at) {
        if (!Traits::stores_d_s && range.hides_first)
            find_first_rows_mask<Traits::rows_are_keys, range_block_rows>(FragmentThread<>(), row_block, range, at)
                .overwrite(x, 0.f);
    }

    // Calls store(j, elements j and j + 1 of dS) for each pair of columns, from P and dP.
    template <bool hides, class Statistic, class Store>
    __device__ __forceinline__ static void find_block_d_s(const Registers &x, const BlockMask &mask,
                                                          const Statistic &delta, const Store &store) {
        const auto p_at = [&](int j) {
            if constexpr (Traits::rounds_first)
                return unpack_two<Element>(x.p[j / 2]);
            else
                return float2{x.s[j], x.s[j + 1]};
        };
        find_d_s<hides>(x.d_p, p_at, delta, mask, store);
    }

    // LSE or delta of the thread's columns.
    struct ReadColumns {
        float4 pairs[range_block_rows / 8];

        __device__ __forceinline__ float4 at(int i) const { return pairs[i / 4]; }
    };

    // Returns LSE or delta: of the queries of a block or, if row blocks are of queries, of the thread's rows.
    template <int slots, int rows>
    __device__ __forceinline__ static auto load_statistic(const float (&statistic)[slots][rows], int slot,
                                                          const BlockMask &mask, int stage) {
        if constexpr (Traits::rows_are_keys) {
            const ColumnStatistic columns_of_block{&statistic[stage][mask.column]};
            ReadColumns read;
#pragma unroll
            for (int i = 0; i < range_block_rows / 8; ++i)
                read.pairs[i] = columns_of_block.at(4 * i);
            return read;
        } else {
            return load_rows(statistic[slot]);
        }
    }
    __device__ __forceinline__ static RowStatistic load_rows(const float *statistic) {
        RowStatistic rows;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            rows.row[r] = statistic[own_row_block() * row_block_rows + FragmentThread<>().row(r)];
        return rows;
    }
    __device__ __forceinline__ static void load_weights(const OwnRange &range, int column, float (&weight)[2]) {
        annulus::load_weights(range.part[own_row_block()], column, weight,
                              [](float count) { return log2_fast(count); });
    }

    // Returns row_block_, for uses that need not be uniform. It is read anew, like the thread's number: the compiler
    // would keep what depends on it in registers.
    __device__ __forceinline__ static int own_row_block() {
        return warpgroup_of_thread() - 1;
    }

    // Clears the rows of a block that are not among the range's `present` rows. They are rows of other segments or
    // classes: their probabilities are 0, but their elements may be infinite.
    __device__ __forceinline__ void clear_absent_rows(int present, int stage) {
        if (present >= range_block_rows)
            return;
        const int first = Traits::rows_are_keys ? 0 : present,
                  last = Traits::rows_are_keys ? range_block_rows - present : range_block_rows;
        const std::uint32_t targets[2] = {shared_address(shared_.range_rows[stage].q_or_k),
                                          shared_address(shared_.range_rows[stage].v_or_d_o)};
        for (int i = first * 8 + thread_of_warpgroup(); i < last * 8; i += warpgroup_threads)
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
#pragma unroll
                for (const std::uint32_t target : targets)
                    store_16_bytes(target + chunk * range_block_rows * swizzled_row_bytes + i * 16, uint4{});
        fence_async_proxy();
        sync_warpgroup(own_row_block());
    }

    // Finds where the images of the row block begin. The row block counts from the first keys of its class in the
    // segment.
    __device__ __forceinline__ void find_images(const OwnTile &tile, int pass) {
        const RowBlock &row_block = tile.row_block[own_row_block()];
        const FastDivmod &length = params_.branches[0].length;
        const int segment = length.quotient(row_block.first);
        const int first = max(segment * length.value, params_.sequence.row_start);
        if (thread_of_warpgroup() == 0)
            shared_.images[own_row_block()] = params_.stored_d_s.halves(
                tile.batch, tile.head, segment, (row_block.first - first) / row_block.stride / row_block_rows, pass);
        sync_warpgroup(own_row_block());
    }

    // Returns where the warp's rows are in the image of a row block of queries: 16 of a half's 32 rows.
    __device__ __forceinline__ std::uint8_t *find_image(int query_block) const {
        const auto [first_query, distance] = shared_.images[row_block_];
        const int warp = uniform(thread_of_warpgroup() / warp_threads);
        return first_query + query_block * StoredDs::half_bytes + (warp / 2) * distance + (warp % 2) * warp_image_bytes;
    }

    // Stages dS of a block, which is an image. A warp's 16 rows are next to one another. dS also stays in registers,
    // for the product that reads it.
    __device__ __forceinline__ void stage_d_s(const std::uint32_t (&d_s)[range_block_rows / 4]) const {
        static_assert(range_block_rows == row_block_rows);
        if (thread_of_warpgroup() % warp_threads == 0)
            bulk_store_wait_read();
        __syncwarp();
        stage_pairs<FragmentThread<>>(shared_address(shared_.d_s[own_row_block()]), d_s);
    }
    // Stores the staged dS. It is called after that product has been issued, so that the fence and the copy run beside
    // the product.
    __device__ __forceinline__ void store_d_s(Registers &x) const {
        const int thread = thread_of_warpgroup();
        fence_async_proxy();
        __syncwarp();
        if (thread % warp_threads == 0)
            bulk_store(x.image, shared_address(shared_.d_s[row_block_]) + thread / warp_threads * warp_image_bytes,
                       warp_image_bytes);
        x.image += StoredDs::half_bytes;
    }

    // Waits for the rows of the current block. Asking a barrier takes a while, so look_ahead() asks one block ahead. It
    // is called after the wait for the current block: the phase before the one asked for must have been seen to end.
    __device__ __forceinline__ void wait_for_block() const {
        if (!is_full_)
            shared_.range_full[stage_.slot()].wait(stage_.parity_to_empty());
    }
    __device__ __forceinline__ void look_ahead() {
        const PipelineState<Traits::stages> next{stage_.count + 1};
        is_full_ = shared_.range_full[next.slot()].has_ended(next.parity_to_empty());
    }

    __device__ __forceinline__ void release(int stage) const {
        if (thread_of_warpgroup() == 0)
            shared_.range_empty[stage].arrive();
    }

    // Skips blocks of the tile that this row block does not meet. The whole warpgroup must have seen a barrier's phase
    // before the stage is released: a warp left two phases behind would wait for a parity that came and went.
    __device__ __forceinline__ void skip_blocks(int blocks) {
        for (; blocks > 0; --blocks, ++stage_.count) {
            const int stage = stage_.slot();
            wait_for_block();
            look_ahead();
            sync_warpgroup(own_row_block());
            release(stage);
        }
    }

    const BackwardParams &params_;
    BackwardShared<Traits> &shared_;
    const int row_block_; // index in the tile
    PipelineState<Traits::stages> stage_;
    bool is_full_ = false; // the current stage, as seen one block before
};

} // namespace annulus
