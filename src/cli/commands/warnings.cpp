// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/warnings.hpp"

#include "cli/report/text.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace annulus::cli {

namespace {

// The most heads that a model has. An array with more heads than this and fewer rows than heads probably has its axes
// swapped.
constexpr std::int64_t many_heads = 128;

void warn_of_layout(const annulus_tensor &k) {
    const std::int64_t rows = k.shape[1], heads = k.shape[2];
    if (heads > many_heads && heads > rows)
        warn("--k is taken for " + counted(rows, "row", "rows") + " of " + std::to_string(heads) +
             " heads; arrays must be [B, N, H, D], not [B, H, N, D]");
}

// Warns unless the sequences, rows first to end - 1, cover all `rows` rows of K.
void warn_of_rows(std::int64_t first, std::int64_t end, std::int64_t rows) {
    std::vector<std::string> outside;
    if (first > 0)
        outside.push_back("0 to " + std::to_string(first - 1));
    if (end < rows)
        outside.push_back(std::to_string(end) + " to " + std::to_string(rows - 1));
    if (!outside.empty())
        warn("--starts: rows " + joined(outside, " and ") + " are in no sequence, and their results are 0");
}

// Returns the residue of the keys that a head attends to. `h` counts from the first of the branch's `count` heads.
std::int64_t phase_of(const annulus_branch &branch, std::int64_t h, std::int64_t count) {
    switch (branch.phase_rule) {
    case ANNULUS_PHASE_BLOCK:
        return h / ((count + branch.dilation - 1) / branch.dilation);
    case ANNULUS_PHASE_INTERLEAVE:
        return h % branch.dilation;
    case ANNULUS_PHASE_FIXED:
        break;
    }
    return branch.residue % branch.dilation;
}

void warn_of_heads(const annulus_config *config, std::int32_t heads, std::int64_t rows) {
    std::vector<bool> has_keys(static_cast<std::size_t>(heads));
    for (const annulus_branch &branch : get_branches(config)) {
        const std::int64_t length = branch.segment_length ? std::min(branch.segment_length, rows) : rows;
        const std::int32_t count = branch.head_count ? branch.head_count : heads - branch.first_head;
        for (std::int32_t h = 0; h < count; ++h)
            if (branch.first_global < rows &&
                (branch.query_rule == ANNULUS_QUERY_RESIDUE || phase_of(branch, h, count) < length))
                has_keys[static_cast<std::size_t>(branch.first_head) + static_cast<std::size_t>(h)] = true;
    }
    if (const std::int64_t empty = std::ranges::count(has_keys, false); empty > 0)
        warn(std::to_string(empty) + " of " + counted(heads, "head", "heads") + (empty == 1 ? " attends" : " attend") +
             " to no key, and their results are 0; in --branch W:R the segment length W comes first, and heads=A-B "
             "names the heads that have the branch");
}

} // namespace

void warn(const std::string &message) {
    std::fputs(error_line("warning: " + message).c_str(), stderr);
}

void warn_of_inputs(const Inputs &inputs, const PatternOptions &pattern) {
    const std::int64_t rows = inputs.k.shape[1];
    const auto heads = static_cast<std::int32_t>(inputs.q.shape[2]);
    warn_of_layout(inputs.k);
    if (const std::vector<std::int64_t> &starts = inputs.starts(); !starts.empty())
        warn_of_rows(starts.front(), starts.back(), rows);
    warn_of_heads(pattern.config(heads).get(), heads, rows);
}

} // namespace annulus::cli
