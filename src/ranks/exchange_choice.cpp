// SPDX-License-Identifier: Apache-2.0
#include "ranks/exchange_choice.hpp"

#include "ranks/gather_slots.hpp"
#include "ranks/shared_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>

namespace annulus {

namespace {

// What each rank receives for all sequences that are gathered. Numbers count the rows of all batch entries, or slots
// for such rows.
class Gathered {
  public:
    Gathered(const Problem &rows, const Shards &shards) : received_(shards.owners.size()) { // each rank has a shard
        std::vector<std::int64_t> rows_of_rank(shards.owners.size());
        for (std::size_t i = 0; i < shards.pieces.size(); ++i)
            rows_of_rank[static_cast<std::size_t>(shards.owners[i])] += shards.pieces[i].length;
        most_rows_ = product(rows.batch, std::ranges::max(rows_of_rank));
        few_rows_ =
            std::min(product(most_rows_, room_beside_few_rows), most_bytes_of_few_rows / key_bytes_of_position(rows));
    }

    // Adds a sequence if each rank has room for its rows. Returns false if a rank has none, or if finding out takes too
    // long.
    bool add(const Sequence &sequence, const ShardLayout &layout) {
        const bool is_long_ring = layout.hops() > most_rounds_of_short_ring;
        const std::int64_t room =
            std::max(product(most_rows_, is_long_ring ? room_beside_long_ring : room_beside_short_ring), few_rows_);
        const std::optional<std::vector<std::int64_t>> bound = bound_slots(layout, effort_);
        if (bound && add(sequence, layout.shards().owners, *bound, room))
            return true;
        const std::optional<std::vector<std::int64_t>> slots = count_slots(layout, room / sequence.batches, effort_);
        return slots && add(sequence, layout.shards().owners, *slots, room);
    }

  private:
    // Adds the slots of the shards with these owners, if no rank then has more than `room`.
    bool add(const Sequence &sequence, const std::vector<int> &owners, const std::vector<std::int64_t> &slots,
             std::int64_t room) {
        const auto received = [&](std::size_t shard) -> std::int64_t & {
            return received_[static_cast<std::size_t>(owners[shard])];
        };
        for (std::size_t i = 0; i < slots.size(); ++i) {
            received(i) += product(sequence.batches, slots[i]);
            if (received(i) <= room)
                continue;
            for (std::size_t j = 0; j <= i; ++j)
                received(j) -= product(sequence.batches, slots[j]);
            return false;
        }
        return true;
    }

    std::int64_t most_rows_ = 0;         // of a rank
    std::int64_t few_rows_ = 0;          // a rank has room for these, however many rounds the ring has
    std::vector<std::int64_t> received_; // by rank
    GatherEffort effort_;
};

} // namespace

std::vector<annulus_exchange> choose_exchanges(const Pattern &pattern, const Problem &rows,
                                               const std::vector<Sequence> &sequences, const Shards &shards) {
    std::vector<annulus_exchange> exchanges(sequences.size(), ANNULUS_EXCHANGE_GATHER);
    std::vector<std::size_t> by_length(sequences.size());
    std::iota(by_length.begin(), by_length.end(), std::size_t{0});
    std::ranges::stable_sort(by_length, {}, [&](std::size_t i) { return sequences[i].rows.length; });
    Gathered gathered(rows, shards);
    for (const std::size_t i : by_length) {
        if (sequences[i].batches == 0 || shards_in(shards.pieces, sequences[i].rows).count() < 2)
            continue; // nothing travels
        const ShardLayout layout(pattern, problem_of(rows, sequences[i]), shards_of(shards, sequences[i].rows).shards,
                                 ANNULUS_EXCHANGE_RING);
        if (!gathered.add(sequences[i], layout))
            exchanges[i] = ANNULUS_EXCHANGE_RING;
    }
    return exchanges;
}

} // namespace annulus
