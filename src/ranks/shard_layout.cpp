// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_layout.hpp"

#include <utility>

namespace annulus {

namespace {

Pattern remote_pattern(Pattern pattern) {
    pattern.causal = false;
    pattern.padding_rule = ANNULUS_PADDING_EXACT;
    return pattern;
}

} // namespace

std::int64_t Shards::rows_of(int rank) const {
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i)
        rows += owners[i] == rank ? pieces[i].length : 0;
    return rows;
}

Window Shards::window_of(int rank) const {
    if (std::ranges::count(owners, rank) == 1)
        return pieces[static_cast<std::size_t>(std::ranges::find(owners, rank) - owners.begin())];
    return {0, rows_of(rank)};
}

Shards make_shards(const std::vector<std::int64_t> &lengths, const std::vector<int> &owners, int ranks) {
    Shards shards;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        if (lengths[i] == 0)
            continue;
        if (!shards.owners.empty() && shards.owners.back() == owners[i]) {
            shards.pieces.back().length += lengths[i];
            continue;
        }
        shards.pieces.push_back({shards.length(), lengths[i]});
        shards.owners.push_back(owners[i]);
    }
    std::vector<bool> has_shard(static_cast<std::size_t>(ranks));
    for (const int owner : shards.owners)
        has_shard[static_cast<std::size_t>(owner)] = true;
    for (int rank = 0; rank < ranks; ++rank)
        if (!has_shard[static_cast<std::size_t>(rank)]) {
            shards.pieces.push_back({shards.length(), 0});
            shards.owners.push_back(rank);
        }
    return shards;
}

std::vector<std::int64_t> even_lengths(std::int64_t sequence_length, std::int32_t ranks) {
    std::vector<std::int64_t> lengths;
    for (std::int32_t i = 0; i < ranks; ++i)
        lengths.push_back(sequence_length / ranks + (i < sequence_length % ranks));
    return lengths;
}

Shards make_shards(const std::vector<std::int64_t> &lengths) {
    Shards shards;
    std::int64_t start = 0;
    for (const std::int64_t length : lengths) {
        shards.owners.push_back(static_cast<int>(shards.pieces.size()));
        shards.pieces.push_back({start, length});
        start += length;
    }
    return shards;
}

ShardRange shards_in(const std::vector<Window> &shards, const Window &rows) {
    const auto first =
        std::ranges::partition_point(shards, [&](const Window &shard) { return shard.end() <= rows.start; });
    const auto last =
        std::partition_point(first, shards.end(), [&](const Window &shard) { return shard.start < rows.end(); });
    return {static_cast<int>(first - shards.begin()), static_cast<int>(last - shards.begin())};
}

SequenceShards shards_of(const Shards &shards, const Window &rows) {
    SequenceShards found;
    const ShardRange range = shards_in(shards.pieces, rows);
    for (auto i = static_cast<std::size_t>(range.first); i < static_cast<std::size_t>(range.last); ++i) {
        const Window part = intersect(shards.pieces[i], rows);
        if (part.length == 0)
            continue;
        found.shards.pieces.push_back({part.start - rows.start, part.length});
        found.shards.owners.push_back(shards.owners[i]);
        found.indices.push_back(i);
    }
    return found;
}

ShardLayout::ShardLayout(const Pattern &pattern, const Problem &problem, Shards shards, annulus_exchange exchange)
    : plan_(pattern, problem), remote_plan_(remote_pattern(pattern), problem), shards_(std::move(shards)),
      exchange_(exchange) {
    find_reaches();
}

std::uint64_t ShardLayout::bytes() const {
    return sizeof *this - 2 * sizeof(Plan) + plan_.bytes() + remote_plan_.bytes() +
           shards_.pieces.capacity() * sizeof(Window) + shards_.owners.capacity() * sizeof(int) +
           reaches_.capacity() * sizeof(ShardRange);
}

void ShardLayout::find_reaches() {
    const int count = static_cast<int>(shards_.pieces.size());
    reaches_.reserve(shards_.pieces.size());
    for (int shard = 0; shard < count; ++shard) {
        const Window &rows = piece(shard);
        if (rows.length == 0) {
            reaches_.push_back({shard, shard + 1});
            continue;
        }
        std::int64_t start = rows.start, end = rows.end();
        for (const BranchPlan &branch : plan_.branches()) {
            // How far a message to or from the shard may go. Segments have no other limit than their ends.
            const KeyBounds &bounds = branch.bounds();
            const std::int64_t far = std::max(bounds.before, bounds.after);
            const Window &queries = branch.query_range(), &keys = branch.key_range();
            for (const auto &[here, there] : {std::pair(queries, keys), {keys, queries}}) {
                if (intersect(rows, here).length == 0 || there.length == 0)
                    continue;
                start = std::min(start,
                                 std::max({branch.segment_at(rows.start).range.start, rows.start - far, there.start}));
                end = std::max(
                    end, std::min({branch.segment_at(rows.end() - 1).range.end(), rows.end() + far, there.end()}));
            }
        }
        const ShardRange &reach = reaches_.emplace_back(shards_in(shards_.pieces, {start, end - start}));
        forward_hops_ = std::max({forward_hops_, reach.last - 1 - shard, shard - reach.first});
    }
    if (!plan_.causal())
        backward_hops_ = std::min(forward_hops_, count - 1 - forward_hops_);
}

} // namespace annulus
