// SPDX-License-Identifier: Apache-2.0
#include "support/mask.hpp"

#include "support/curve.hpp"

#include <algorithm>
#include <stdexcept>

namespace annulus::test {

static std::int64_t divide_up(std::int64_t a, std::int64_t b) {
    return a / b + (a % b != 0);
}

Mask::Mask(const Problem &problem) : problem_(problem) {
    for (std::size_t branch = 0; branch < problem.branches.size(); ++branch) {
        const BranchSpec &spec = problem.branches[branch];
        std::vector<std::int64_t> places(problem.length);
        for (std::int64_t start = 0; start < problem.length;) {
            const Segment segment = segment_of(branch, start);
            if (spec.order == ANNULUS_ORDER_HILBERT) {
                const bool fits = spec.width && segment.length % spec.width == 0;
                const std::int64_t columns = fits ? spec.width : hilbert_columns(segment.length);
                const std::vector<std::int64_t> curve = hilbert_positions(segment.length / columns, columns);
                for (std::int64_t p = 0; p < segment.length; ++p)
                    places.at(start + curve[p]) = p;
            } else {
                for (std::int64_t p = 0; p < segment.length; ++p)
                    places[start + p] = p;
            }
            start += segment.length;
        }
        residues_.emplace_back();
        for (const std::int64_t place : places)
            residues_.back().push_back(place % spec.dilation);
        places_.push_back(std::move(places));
    }
}

Mask::Segment Mask::segment_of(std::size_t branch, std::int64_t position) const {
    const std::int64_t w = problem_.branches[branch].segment ? problem_.branches[branch].segment : problem_.length;
    const std::int64_t start = position / w * w;
    return {start, std::min(w, problem_.length - start)};
}

bool Mask::serves(std::size_t branch, std::int32_t head) const {
    const BranchSpec &spec = problem_.branches[branch];
    const std::int32_t global_head = problem_.head_shard.first + head;
    return global_head >= spec.first_head && (spec.head_count == 0 || global_head < spec.first_head + spec.head_count);
}

std::int64_t Mask::phase(std::size_t branch, std::int32_t head) const {
    const BranchSpec &spec = problem_.branches[branch];
    const std::int32_t heads = problem_.head_shard.total ? problem_.head_shard.total : problem_.heads;
    const std::int64_t count = spec.head_count ? spec.head_count : heads - spec.first_head;
    const std::int64_t h = problem_.head_shard.first + head - spec.first_head;
    switch (spec.phase) {
    case ANNULUS_PHASE_BLOCK:
        return h / divide_up(count, spec.dilation);
    case ANNULUS_PHASE_INTERLEAVE:
        return h % spec.dilation;
    case ANNULUS_PHASE_FIXED:
        return spec.residue % spec.dilation;
    }
    throw std::invalid_argument("no such phase rule");
}

bool Mask::is_in_window(const BranchSpec &spec, std::int64_t n, std::int64_t m) {
    if ((m - n) % spec.dilation != 0)
        return false;
    const std::int64_t j = (m - n) / spec.dilation;
    return (spec.left == -1 || j >= -spec.left) && (spec.right == -1 || j <= spec.right);
}

bool Mask::is_global_pair(const BranchSpec &spec, std::int64_t n, std::int64_t m) {
    const auto is_global = [&](std::int64_t position) {
        return position >= spec.first_global && position - spec.first_global < spec.global_count;
    };
    return is_global(m) || (spec.global_queries && is_global(n));
}

void Mask::add_keys(std::size_t branch, std::int64_t position, std::int32_t head, Keys &keys) const {
    if (!serves(branch, head))
        return;
    const BranchSpec &spec = problem_.branches[branch];
    if (spec.kind == ANNULUS_BRANCH_GLOBAL) {
        for (std::int64_t m = 0; m < (problem_.causal ? position + 1 : problem_.length); ++m)
            if (is_global_pair(spec, position, m))
                keys.positions.push_back(m);
        return;
    }
    const std::vector<std::int64_t> &residues = residues_[branch];
    const std::int64_t query_residue = residues[position];
    const std::int64_t phi = phase(branch, head);
    if (spec.query == ANNULUS_QUERY_DILATED && query_residue != phi)
        return;
    const std::int64_t key_residue = spec.query == ANNULUS_QUERY_RESIDUE ? query_residue : phi;
    const Segment segment = segment_of(branch, position);
    std::int64_t real = 0;
    for (std::int64_t m = segment.start; m < segment.start + segment.length; ++m) {
        if (residues[m] != key_residue)
            continue;
        ++real;
        const bool is_near = spec.kind == ANNULUS_BRANCH_SEGMENTS || is_in_window(spec, position, m);
        if (is_near && (!problem_.causal || m <= position))
            keys.positions.push_back(m);
    }
    if (problem_.zero_keys && !problem_.causal && spec.kind == ANNULUS_BRANCH_SEGMENTS) {
        const std::int64_t w = spec.segment ? std::min(spec.segment, problem_.length) : problem_.length;
        keys.padding += divide_up(w, spec.dilation) - real;
    }
}

Mask::Keys Mask::keys(std::int64_t position, std::int32_t head) const {
    Keys keys;
    for (std::size_t branch = 0; branch < problem_.branches.size(); ++branch)
        add_keys(branch, position, head, keys);
    if (problem_.keys_once) {
        std::ranges::sort(keys.positions);
        keys.positions.erase(std::unique(keys.positions.begin(), keys.positions.end()), keys.positions.end());
    }
    return keys;
}

} // namespace annulus::test
