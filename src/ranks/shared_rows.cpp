// SPDX-License-Identifier: Apache-2.0
#include "ranks/shared_rows.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace annulus {

std::vector<SharedBranch> shared_branches(const Plan &plan, const Window &keys, const Window &queries, Steps &steps) {
    std::vector<SharedBranch> all;
    if (queries.length == 0 || seen_keys(plan.causal(), queries.end() - 1, keys).length == 0)
        return all;
    const std::int64_t nearest = keys.start < queries.start ? keys.end() - 1 : keys.start;
    for (std::size_t i = 0; i < plan.branches().size(); ++i) {
        const BranchPlan &branch = plan.branches()[i];
        // A shared segment contains the sender's position that is nearest to the receiver.
        const Segment segment = branch.segment_at(nearest);
        const Window &range = segment.range;
        const Window part = intersect(intersect(range, branch.query_range()), queries);
        if (part.length == 0)
            continue;
        // In a window branch these are the keys that some query of any residue is near enough to.
        const Window near = intersect(keys, branch.bounds().keys(part.start, part.end() - 1));
        const Window wanted = intersect(intersect(range, branch.key_range()), near);
        if (wanted.length == 0)
            continue;
        SharedBranch shared{static_cast<std::int32_t>(i), &branch, segment, wanted, part};
        if (shared.is_linear()) {
            const std::int64_t r = branch.dilation();
            ResidueSet present;
            set_range({(shared.keys.start - range.start) % r, std::min(shared.keys.length, r)}, r, present);
            const ResidueRange asked = residues_of_queries(branch, part.start - range.start, part.length);
            intersect(asked, r, present, shared.asked);
        }
        all.push_back(std::move(shared));
    }
    constexpr std::size_t steps_per_shared_branch = 4;
    steps.take(static_cast<std::int64_t>(plan.branches().size() + steps_per_shared_branch * all.size()));
    return all;
}

std::int64_t key_bytes_of_position(const Problem &problem) {
    constexpr std::int64_t tensors = 2; // K and V
    return product(tensors * problem.kv_heads, std::int64_t{problem.head_dim} * dtype_bytes(problem.dtype));
}

HeadGroup heads_of(const Plan &plan, std::int32_t kv_head) {
    const std::int32_t group = plan.problem().heads / plan.problem().kv_heads;
    return {kv_head * group, (kv_head + 1) * group};
}

bool list_progressions(const std::vector<SharedBranch> &branches, const HeadGroup &heads,
                       std::vector<Progression> &rows) {
    rows.clear();
    ResidueSet wanted;
    const auto add = [&](const Progression &progression) {
        if (std::find(rows.begin(), rows.end(), progression) == rows.end())
            rows.push_back(progression);
        return rows.size() <= max_progressions;
    };
    for (const SharedBranch &shared : branches) {
        const ResidueRange used = shared.branch->residues(heads.first, heads.last);
        if (used.count == 0)
            continue;
        if (!shared.has_progressions())
            return false;
        if (shared.asks_for_all_keys()) {
            if (!add({shared.keys.start, 1, shared.keys.length}))
                return false;
            continue;
        }
        intersect(used, shared.dilation(), shared.asked, wanted);
        for (const Interval &residues : wanted)
            for (std::int64_t residue = residues.begin; residue < residues.end; ++residue)
                if (!add(shared.progression(residue)))
                    return false;
    }
    return true;
}

namespace {

// Returns the greatest common divisor of all distances between rows; 0 if there is one row.
std::int64_t common_stride(const std::vector<Progression> &rows) {
    std::int64_t stride = 0;
    for (const Progression &p : rows) {
        stride = std::gcd(stride, p.first - rows.front().first);
        if (p.count > 1)
            stride = std::gcd(stride, p.stride);
    }
    return stride;
}

// Returns the positions from the first row that any head wants to the last. A branch in the Hilbert order, or whose
// queries ask for too many residues, counts with all its keys.
Window find_hull(const std::vector<SharedBranch> &branches, std::int32_t heads) {
    Window hull;
    const auto widen = [&](std::int64_t first, std::int64_t last) {
        const std::int64_t start = hull.length ? std::min(hull.start, first) : first;
        const std::int64_t end = hull.length ? std::max(hull.end(), last + 1) : last + 1;
        hull = {start, end - start};
    };
    ResidueSet wanted;
    for (const SharedBranch &shared : branches) {
        const std::int64_t r = shared.dilation(), last = shared.keys.end() - 1;
        if (!shared.has_progressions() || shared.asks_for_all_keys()) {
            widen(shared.keys.start, last);
            continue;
        }
        intersect(shared.branch->residues(0, heads), r, shared.asked, wanted);
        for (const Interval &residues : wanted) { // each residue has a key
            const std::int64_t origin = shared.segment.range.start + residues.begin;
            const std::int64_t begin = remainder(shared.keys.start - origin, r), end = remainder(last - origin, r);
            widen(shared.keys.start + (begin < residues.length() ? 0 : r - begin),
                  last - (end < residues.length() ? 0 : end - residues.length() + 1));
        }
    }
    return hull;
}

// Returns nothing if the steps have run out.
std::optional<Outline> make_outline(const Plan &plan, const std::vector<SharedBranch> &branches, Steps &steps) {
    Outline outline{find_hull(branches, plan.problem().heads)};
    std::int64_t stride = 0;
    std::vector<Progression> rows;
    for (std::int32_t kv_head = 0; outline.keys.length > 0 && stride != 1 && kv_head < plan.problem().kv_heads;
         ++kv_head) {
        const bool is_listed = list_progressions(branches, heads_of(plan, kv_head), rows);
        if (!steps.take(static_cast<std::int64_t>(branches.size() + rows.size())))
            return std::nullopt;
        stride = is_listed ? std::gcd(stride, common_stride(rows)) : 1;
    }
    if (steps.ran_out())
        return std::nullopt;
    outline.stride = stride == 0 ? std::max<std::int64_t>(1, outline.keys.length) : stride;
    return outline;
}

// The bytes of K and V in slots that one more message is worth. A GPU clears, fills and reads such slots, and those of
// their gradients, in about the time of the message's launches. It is an estimate that was not measured, and CPUs use
// it, too.
constexpr std::int64_t bytes_per_message = std::int64_t{32} << 20;

// Returns how many slots are worth one more message.
std::int64_t slots_per_message(const Problem &problem) {
    return bytes_per_message / product(std::max<std::int64_t>(1, problem.batch), key_bytes_of_position(problem));
}

// Returns the band of these keys. Its outline has no keys if no row is wanted. Returns nothing if the steps have run
// out.
std::optional<Band> make_band(const Plan &plan, const Window &keys, const Window &queries, Steps &steps) {
    std::vector<SharedBranch> branches = shared_branches(plan, keys, queries, steps);
    const std::optional<Outline> outline = make_outline(plan, branches, steps);
    if (!outline)
        return std::nullopt;
    return Band{std::move(branches), *outline};
}

// Returns the window from the start of one window to the end of another, whichever comes first.
Window span_of(const Window &a, const Window &b) {
    const std::int64_t start = std::min(a.start, b.start);
    return {start, std::max(a.end(), b.end()) - start};
}

// Appends the bands of keys without a gap. `pieces` are the keys, the nearest to the receiver first. A piece joins the
// band before it unless a band of its own saves more slots than a message is worth. Returns false if the steps have run
// out.
bool add_bands(const Plan &plan, std::span<const Window> pieces, const Window &queries, Steps &steps,
               std::vector<Band> &bands) {
    const std::int64_t max_lost_slot_count = slots_per_message(plan.problem());
    Window keys = pieces.front();
    std::optional<Band> band = make_band(plan, keys, queries, steps);
    const auto add = [&] {
        if (band->outline.keys.length > 0)
            bands.push_back(*std::move(band));
    };
    for (const Window &piece : pieces.subspan(1)) {
        const Window joint_keys = span_of(keys, piece);
        std::optional<Band> joint = make_band(plan, joint_keys, queries, steps),
                            own = make_band(plan, piece, queries, steps);
        if (!band || !joint || !own)
            return false;
        if (joint->outline.slots() <= band->outline.slots() + own->outline.slots() + max_lost_slot_count) {
            keys = joint_keys;
            band = std::move(joint);
        } else {
            add();
            keys = piece;
            band = std::move(own);
        }
    }
    if (!band)
        return false;
    add();
    return true;
}

} // namespace

std::vector<Window> cut_at_ends(const std::vector<Window> &windows) {
    std::vector<std::int64_t> ends;
    for (const Window &window : windows)
        ends.insert(ends.end(), {window.start, window.end()});
    std::ranges::sort(ends);
    std::vector<Window> pieces;
    for (std::size_t i = 1; i < ends.size(); ++i)
        if (ends[i - 1] < ends[i])
            pieces.push_back({ends[i - 1], ends[i] - ends[i - 1]});
    return pieces;
}

std::optional<std::vector<Band>> make_bands(const Plan &plan, const std::vector<SharedBranch> &branches,
                                            const Window &keys, const Window &queries, Steps &steps) {
    std::vector<Window> windows;
    for (const SharedBranch &shared : branches)
        windows.push_back(shared.keys);
    std::vector<Window> pieces = cut_at_ends(windows);
    if (keys.start < queries.start)
        std::ranges::reverse(pieces);
    const auto is_gap = [&](const Window &piece) {
        return std::ranges::none_of(windows, [&](const Window &window) { return intersect(window, piece).length > 0; });
    };
    std::vector<Band> bands;
    for (auto begin = pieces.begin(); begin != pieces.end();) {
        const auto end = std::find_if(begin, pieces.end(), is_gap);
        if (!add_bands(plan, {begin, end}, queries, steps, bands))
            return std::nullopt;
        begin = std::find_if_not(end, pieces.end(), is_gap);
    }
    return bands;
}

} // namespace annulus
