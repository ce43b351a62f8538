// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/shard.hpp"

#include "cli/devices/handles.hpp"

#include <algorithm>
#include <map>
#include <string>

namespace annulus::cli {

Shards::Shards(std::int64_t tokens, int ranks, Sharding sharding) : ranks_(ranks) {
    const int count = sharding == Sharding::zigzag ? 2 * ranks : ranks;
    for (int i = 0; i < count; ++i) {
        lengths_.push_back(tokens / count + (i < tokens % count ? 1 : 0));
        owners_.push_back(std::min(i, 2 * ranks - 1 - i)); // i itself if sharding is even
    }
}

Shards::Shards(annulus_context *context, const annulus_problem &problem, int ranks, Sharding sharding)
    : Shards(problem.sequence_length, ranks, sharding) {
    if (sharding != Sharding::balanced)
        return;
    std::int32_t count = 0;
    lengths_.resize(ANNULUS_MAX_SHARDS);
    owners_.resize(ANNULUS_MAX_SHARDS);
    check(
        annulus_balance_shards(context, &problem, ranks, ANNULUS_MAX_SHARDS, lengths_.data(), owners_.data(), &count));
    lengths_.resize(static_cast<std::size_t>(count));
    owners_.resize(static_cast<std::size_t>(count));
}

std::vector<Range> Shards::ranges(int rank) const {
    std::vector<Range> ranges;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < lengths_.size(); start += lengths_[i++]) {
        if (owners_[i] != rank)
            continue;
        if (!ranges.empty() && ranges.back().start + ranges.back().length == start)
            ranges.back().length += lengths_[i];
        else
            ranges.push_back({start, lengths_[i]});
    }
    return ranges;
}

std::int64_t Shards::rows(int rank) const {
    std::int64_t rows = 0;
    for (const Range &range : ranges(rank))
        rows += range.length;
    return rows;
}

Shards Shards::on_hosts(int hosts) const {
    Shards shards = *this;
    shards.ranks_ = hosts;
    for (std::int32_t &owner : shards.owners_)
        owner = host_of(owner, ranks_, hosts);
    return shards;
}

Option add_shards_option(Command &command, Sharding &sharding, bool can_balance) {
    static const std::map<std::string, Sharding> words = {
        {"even", Sharding::even}, {"zigzag", Sharding::zigzag}, {"balanced", Sharding::balanced}};
    std::string help =
        "What each rank holds: one contiguous part (even, the default), or of 2P parts the p-th and the p-th from "
        "the end (zigzag), which gives all ranks as much to do where attention is causal";
    std::vector<std::string> choices = {"even", "zigzag"};
    if (can_balance) {
        help += "; or the parts with which the busiest rank has least to do (balanced)";
        choices.emplace_back("balanced");
    }
    return command
        .parsed(
            "--shards", [&sharding](const std::string &word) { sharding = words.at(word); }, help)
        .one_of(choices)
        .value("RULE");
}

} // namespace annulus::cli
