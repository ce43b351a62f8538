// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/plan_memory.hpp"

#include "cli/arrays/dtype_bytes.hpp"
#include "cli/commands/gpu_engines.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace annulus::cli {

namespace {

// The rooms of doc/limits.md and doc/performance.md.
constexpr std::uint64_t MiB = 1 << 20, room_for_sums = 1280 * MiB, room_for_ds = 1536 * MiB, gemm_room = 256 * MiB;
// Rows of the partial results of tiles that several multiprocessors share, for each of them.
constexpr std::uint64_t shared_tile_rows = 384;
// A launch gets the rows with sums in at most this number of intervals (doc/ranks.md); else all rows have sums.
constexpr std::size_t max_intervals = 16;
// Rows at the end of a window have sums in whole blocks of this number of rows, times the largest dilation.
constexpr std::int64_t block_rows = 64;
// Stored dS has whole blocks of this number of queries and keys.
constexpr std::int64_t ds_block_rows = 128;

bool is_backward(annulus_pass pass) {
    return pass == ANNULUS_PASS_BACKWARD;
}

// Returns how many of `rows` consecutive rows a head has of a class modulo `stride` at most.
std::int64_t class_rows(std::int64_t rows, std::int64_t stride) {
    return rows / stride + (rows % stride != 0);
}

// A job, and what its branches have in common.
class Pattern {
  public:
    Pattern(const PlannedJob &job, annulus_pass pass, annulus_engine engine)
        : job_(job), pass_(pass), engine_(engine), config_(job.pattern.config(job.problem.heads)),
          branches_(get_branches(config_.get())) {}

    const std::vector<annulus_branch> &branches() const { return branches_; }
    bool is_causal() const { return job_.pattern.causal; }
    std::int64_t largest_dilation() const {
        return std::ranges::max_element(branches_, {}, &annulus_branch::dilation)->dilation;
    }

    // True if one launch, without sums, computes a call.
    bool is_one_linear_branch() const {
        return branches_.size() == 1 && !is_curved(branches_.front()) &&
               branches_.front().kind != ANNULUS_BRANCH_GLOBAL;
    }
    // True if the launches over a shard's own keys may store dS.
    bool may_store_ds() const { return branches_.size() == 1 && branches_.front().kind == ANNULUS_BRANCH_SEGMENTS; }

    // True if the launches over a shard's own keys leave sums of all rows of a side, whatever the borders cut.
    bool has_sums_of_all(bool are_keys) const {
        const auto is_global = [](const annulus_branch &branch) { return branch.kind == ANNULUS_BRANCH_GLOBAL; };
        return engine_ == ANNULUS_ENGINE_GEMM || !is_one_launch(branches_) ||
               std::ranges::any_of(branches_, is_global) ||
               (are_keys && (job_.problem.heads != job_.problem.kv_heads || may_store_ds()));
    }

    // Returns the rows of a side that a head has in the class of a branch at most.
    std::int64_t class_rows_of(const annulus_branch &branch, bool are_keys, std::int64_t rows) const {
        const bool has_classes =
            are_keys ? branch.query_rule != ANNULUS_QUERY_RESIDUE : branch.query_rule == ANNULUS_QUERY_DILATED;
        return class_rows(rows, has_classes ? branch.dilation : 1);
    }

    // Returns the most bytes that branches along a curve take: the order of the positions, and for `mma` the copies of
    // the rows that one branch reads.
    std::uint64_t curve_bytes(std::int64_t rows) const {
        const annulus_problem &problem = job_.problem;
        const auto curves = static_cast<std::uint64_t>(std::ranges::count_if(branches_, is_curved));
        if (curves == 0)
            return 0;
        const std::int32_t heads = is_backward(pass_) ? problem.heads : problem.kv_heads;
        const std::int64_t row_bytes = 2 * problem.head_dim * dtype_bytes(problem.dtype) + (is_backward(pass_) ? 8 : 0);
        const std::int64_t copies = engine_ == ANNULUS_ENGINE_MMA ? problem.batch * rows * heads * row_bytes : 0;
        return 8 * static_cast<std::uint64_t>(rows) * curves + static_cast<std::uint64_t>(copies);
    }

    // True if sums hold the reached rows only, in parts, by doc/limits.md. More than nine branches may leave more than
    // eight to the launches after the first.
    bool has_small_sums() const {
        const auto is_small = [](const annulus_branch &branch) {
            return !is_curved(branch) && (branch.dilation == 1 || branch.query_rule != ANNULUS_QUERY_RESIDUE);
        };
        const std::int64_t least = std::ranges::min_element(branches_, {}, &annulus_branch::dilation)->dilation;
        const auto has_all_rows = [&](const annulus_branch &branch) {
            return branch.dilation == least && (least == 1 || branch.query_rule == ANNULUS_QUERY_EVERY) &&
                   branch.first_head == 0 && (branch.head_count == 0 || branch.head_count == job_.problem.heads);
        };
        return branches_.size() <= 9 && std::ranges::all_of(branches_, is_small) &&
               std::ranges::any_of(branches_, has_all_rows);
    }

  private:
    const PlannedJob &job_;
    annulus_pass pass_;
    annulus_engine engine_;
    Config config_;
    std::vector<annulus_branch> branches_;
};

// The rows of a side of a shard, or of several shards together.
struct SideRows {
    std::int64_t all = 0;
    std::int64_t cut = 0;    // each head has at most this number that attend to, or are attended to by, other shards
    std::int64_t summed = 0; // each head has at most this number of sums
    // A head has at most this number of pairs of queries and other shards' keys in one branch of segments. Launches
    // over these pairs may store dS.
    double cut_pairs = 0;
};

// Positions of a sequence that one shard has, but not all of them.
struct Piece {
    std::int64_t start, end, sequence_length;
};

SideRows side_rows(const Pattern &pattern, bool are_keys, const Piece &piece) {
    constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 2;
    const std::int64_t length = piece.end - piece.start;
    SideRows rows{length};
    std::size_t intervals = pattern.branches().size() - 1;
    for (const annulus_branch &branch : pattern.branches()) {
        if (branch.kind == ANNULUS_BRANCH_GLOBAL) {
            rows.cut = length;
            continue;
        }
        const auto reach = [&](std::int64_t steps) {
            if (branch.kind != ANNULUS_BRANCH_WINDOW || steps < 0 || steps > piece.sequence_length / branch.dilation)
                return unlimited;
            return steps == 0 ? 0 : steps * branch.dilation + block_rows * pattern.largest_dilation();
        };
        std::int64_t before = reach(branch.left), after = pattern.is_causal() ? 0 : reach(branch.right);
        if (are_keys)
            std::swap(before, after);
        const std::int64_t segment = branch.segment_length == 0 ? piece.sequence_length : branch.segment_length;
        const std::int64_t first = piece.start - piece.start % segment,
                           last = piece.end - 1 - (piece.end - 1) % segment;
        double pairs = 0;
        const auto add = [&](std::int64_t here, std::int64_t elsewhere, std::int64_t within_reach) {
            const std::int64_t cut = pattern.class_rows_of(branch, are_keys, std::min({here, within_reach, length}));
            rows.cut += cut;
            intervals += cut > 0;
            pairs += static_cast<double>(cut + ds_block_rows) *
                     static_cast<double>(pattern.class_rows_of(branch, !are_keys, std::min(elsewhere, within_reach)) +
                                         ds_block_rows);
        };
        if (first < piece.start)
            add(first + segment - piece.start, piece.start - first, before);
        const std::int64_t end = std::min(last + segment, piece.sequence_length);
        if (end > piece.end)
            add(piece.end - last, end - piece.end, after);
        if (branch.kind == ANNULUS_BRANCH_SEGMENTS)
            rows.cut_pairs = std::max(rows.cut_pairs, pairs);
    }
    rows.cut = std::min(rows.cut, length);
    rows.summed = rows.cut;
    if (pattern.has_sums_of_all(are_keys) || intervals > max_intervals) {
        rows.summed = length;
        return rows;
    }
    // All but the least dilated branches may have a launch of their own, whose rows are sums.
    std::vector<annulus_branch> branches = pattern.branches();
    std::ranges::sort(branches, {}, &annulus_branch::dilation);
    for (std::size_t i = 1; i < branches.size(); ++i)
        rows.summed += pattern.class_rows_of(branches[i], are_keys, length);
    rows.summed = std::min(rows.summed, length);
    return rows;
}

// The rows of the shards of a rank that exchange messages.
struct SharedRows {
    SideRows queries, keys;
};

SharedRows shared_rows(const PlannedJob &job, const Pattern &pattern, annulus_pass pass, const Shards &shards,
                       std::int32_t rank) {
    const std::vector<std::int64_t> bounds = sequence_bounds(job.problem);
    SharedRows all;
    const auto add = [](const SideRows &more, SideRows &sum) {
        sum.all += more.all;
        sum.cut += more.cut;
        sum.summed += more.summed;
        sum.cut_pairs = std::max(sum.cut_pairs, more.cut_pairs);
    };
    for (const Range &range : shards.ranges(rank)) {
        const std::int64_t end = range.start + range.length;
        for (auto next = std::ranges::upper_bound(bounds, range.start); next != bounds.begin() && next != bounds.end();
             ++next) {
            const std::int64_t start = *std::prev(next);
            if (start >= end)
                break;
            const Piece piece{std::max(range.start, start) - start, std::min(end, *next) - start, *next - start};
            if (piece.start >= piece.end || piece.end - piece.start == piece.sequence_length)
                continue;
            const SideRows queries = side_rows(pattern, false, piece), keys = side_rows(pattern, true, piece);
            if (queries.cut == 0 && (!is_backward(pass) || keys.cut == 0))
                continue;
            add(queries, all.queries);
            add(keys, all.keys);
        }
    }
    return all;
}

std::uint64_t bytes_of(double count) {
    return static_cast<std::uint64_t>(std::max(count, 0.0));
}

// Returns the most bytes of the partial results of tiles that several multiprocessors share.
std::uint64_t shared_tile_bytes(const annulus_problem &problem, annulus_pass pass, const GpuModel &model) {
    const std::uint64_t tensors = is_backward(pass) ? 2 : 1;
    return 4 * tensors * static_cast<std::uint64_t>(problem.head_dim + 2) * shared_tile_rows *
           static_cast<std::uint64_t>(model.multiprocessors);
}

// Returns the most bytes that an engine takes for rows whose keys are all on the rank.
std::uint64_t engine_bytes(const PlannedJob &job, const Pattern &pattern, annulus_pass pass, const GpuModel &model,
                           std::int64_t rows, double pairs) {
    const annulus_problem &problem = job.problem;
    const auto dim = static_cast<std::uint64_t>(problem.head_dim);
    const auto query_rows = static_cast<std::uint64_t>(problem.batch * rows * problem.heads);
    const auto key_rows = static_cast<std::uint64_t>(problem.batch * rows * problem.kv_heads);
    const bool is_one = is_one_launch(pattern.branches());
    // Float32 sums of O or dQ, and two numbers of a row.
    std::uint64_t sums = 4 * (dim + 2) * query_rows;
    if (is_one || pattern.has_small_sums())
        sums = std::min(room_for_sums, sums);
    if (pattern.is_one_linear_branch())
        sums = std::min(shared_tile_bytes(problem, pass, model), sums);
    const std::uint64_t curves = pattern.curve_bytes(rows);
    if (!is_backward(pass))
        return sums + curves;
    // Two float32 numbers of a row, dS in 16 bits, and float32 sums of dK and dV.
    return 8 * query_rows + std::min(room_for_ds, bytes_of(2 * pairs)) + 8 * dim * key_rows + (is_one ? 0 : sums) +
           curves;
}

// Returns the most bytes that an engine takes for rows that have keys on other ranks, beside messages and sums.
std::uint64_t engine_bytes_of_shared(const PlannedJob &job, const Pattern &pattern, annulus_pass pass,
                                     const GpuModel &model, const SharedRows &rows, const annulus_estimate &estimate) {
    const annulus_problem &problem = job.problem;
    const std::uint64_t parts = shared_tile_bytes(problem, pass, model);
    const std::uint64_t curves = pattern.curve_bytes(rows.queries.all);
    if (!is_backward(pass))
        return parts + curves;
    // dS of one branch in 16 bits, over the own keys or over received ones.
    const double received_pairs = static_cast<double>(problem.batch * problem.heads) * rows.queries.cut_pairs;
    const double own_pairs = pattern.may_store_ds() ? estimate.pairs : 0;
    return parts + curves + std::min(room_for_ds, bytes_of(2 * std::max(own_pairs, received_pairs)));
}

// Returns the most bytes of the sums of rows that other ranks add to.
std::uint64_t sums_of_shared(const annulus_problem &problem, annulus_pass pass, const SharedRows &rows) {
    const auto bytes = [&](std::int32_t heads, std::int64_t head_rows, std::int64_t elements) {
        return static_cast<std::uint64_t>(4 * problem.batch * heads * head_rows * elements);
    };
    if (!is_backward(pass))
        return bytes(problem.heads, rows.queries.summed, problem.head_dim + 2);
    return bytes(problem.heads, rows.queries.all, 2) + bytes(problem.heads, rows.queries.summed, problem.head_dim) +
           bytes(problem.kv_heads, rows.keys.summed, 2 * problem.head_dim);
}

} // namespace

std::uint64_t gpu_workspace_bytes(const PlannedJob &job, annulus_pass pass, const Gpu &gpu,
                                  const annulus_estimate &estimate, std::uint64_t message_bytes, const Shards &shards,
                                  std::int32_t rank) {
    const annulus_engine engine = gpu.engine(pass);
    const Pattern pattern(job, pass, engine);
    const std::int64_t rows = shards.rows(rank);
    const SharedRows shared = shared_rows(job, pattern, pass, shards, rank);
    std::uint64_t most = gemm_room;
    if (engine != ANNULUS_ENGINE_GEMM) {
        most = 0;
        if (rows > shared.queries.all)
            most = engine_bytes(job, pattern, pass, gpu.model, rows - shared.queries.all, estimate.pairs);
        if (shared.queries.all > 0)
            most = std::max(most, engine_bytes_of_shared(job, pattern, pass, gpu.model, shared, estimate));
    }
    // message_bytes has rows and gradients in float32, 8 bytes an element. A call has rows of its own dtype. Backward
    // has float32 gradients, too.
    const auto eighths = static_cast<std::uint64_t>(dtype_bytes(job.problem.dtype)) + (is_backward(pass) ? 4U : 0U);
    return message_bytes * eighths / 8 + sums_of_shared(job.problem, pass, shared) + most;
}

} // namespace annulus::cli
