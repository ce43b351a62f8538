// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/tiles.hpp"

#include "core/class_pairs.hpp"

#include <algorithm>
#include <array>

namespace annulus {

namespace {

// Tiles begin at multiples of this inside a class, so that only the last tile of a class has an odd size.
constexpr std::int64_t row_alignment = 64;
// Number of queries of a tile that a bound crosses. With fewer queries, fewer computed scores are hidden. But the tiles
// of a set should have at least `set_queries` queries together.
constexpr std::int64_t diagonal_queries = 256, set_queries = 4096;

// Returns the length of pieces into which n rows are divided: at most `tile`, and equal except for the last piece.
std::int64_t piece_length(std::int64_t n, std::int64_t tile) {
    if (n <= tile)
        return std::max<std::int64_t>(n, 1);
    const std::int64_t even = divide_up(n, divide_up(n, tile));
    return std::min(tile, divide_up(even, row_alignment) * row_alignment);
}

// Divides classes of equal size, over some segments and heads, into tiles.
class ClassTiles {
  public:
    ClassTiles(const TileSet &base, const Progression &queries, const Progression &keys, const BranchPlan &branch,
               std::vector<TileSet> &out)
        : base_(base), queries_(queries), keys_(keys), is_window_(branch.kind() == ANNULUS_BRANCH_WINDOW),
          is_bounded_(branch.causal() || is_window_), is_linear_(base.curve.is_linear()), out_(out) {}

    // A diagonal d pairs piece a of the queries with piece a + d of the keys. Tiles of one diagonal share neither
    // queries nor keys.
    void divide(std::int64_t tile) {
        // With bounds, pieces of the same length on both sides make equal tiles along a diagonal. Pieces much longer
        // than a window would have many scores that are hidden.
        const bool has_equal_pieces = is_bounded_ && is_linear_;
        if (is_window_)
            tile = std::min(tile, std::max(diagonal_queries, divide_up(window_keys(), row_alignment) * row_alignment));
        query_piece_ = piece_length(has_equal_pieces ? std::max(queries_.count, keys_.count) : queries_.count, tile);
        key_piece_ = has_equal_pieces && keys_.count > tile ? query_piece_ : piece_length(keys_.count, tile);
        const std::int64_t query_pieces = divide_up(queries_.count, query_piece_);
        const std::int64_t key_pieces = std::max<std::int64_t>(1, divide_up(keys_.count, key_piece_));
        has_one_key_piece_ = key_pieces == 1;
        std::int64_t first = 1 - query_pieces, last = key_pieces - 1;
        if (is_window_ && key_pieces > 1) { // other diagonals lie outside the window
            const std::int64_t apart = keys_.first - queries_.first, r = keys_.stride;
            first = std::max(first, divide_down(divide_down(-base_.bounds.before - apart, r), key_piece_));
            last = std::min(last, divide_down(divide_down(base_.bounds.after - apart, r) + key_piece_ - 1, key_piece_));
        }
        for (std::int64_t diagonal = first; diagonal <= last; ++diagonal) {
            const std::int64_t end = std::min(query_pieces, key_pieces - diagonal);
            for (std::int64_t i = std::max<std::int64_t>(0, -diagonal); i < end; ++i)
                add(i, i + diagonal);
            flush();
        }
    }

  private:
    struct Pair {
        std::int64_t query, query_count; // indices into the progressions
        std::int64_t key, key_count;
        bool is_masked;      // the bounds hide some of its keys from some of its queries
        std::int64_t offset; // place of the first query relative to the first key, if masked
        std::int64_t padding;
        bool same_shape(const Pair &p) const {
            return query_count == p.query_count && key_count == p.key_count && is_masked == p.is_masked &&
                   offset == p.offset && padding == p.padding;
        }
    };

    // Returns how many keys of the class a query inside the window may see.
    std::int64_t window_keys() const { return (base_.bounds.before + base_.bounds.after) / keys_.stride + 1; }
    // Query i sees the keys seen_from(i) … seen_to(i) - 1 of the class. Along a curve it may see each key.
    std::int64_t seen_from(std::int64_t i) const {
        return is_linear_ ? first_from(keys_, queries_[i] - base_.bounds.before) : 0;
    }
    std::int64_t seen_to(std::int64_t i) const {
        return is_linear_ ? first_from(keys_, queries_[i] + base_.bounds.after + 1) : keys_.count;
    }
    // True if some query of first … last does not see all keys of begin … end - 1, and so if the keys need a mask.
    bool hides(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) const {
        return is_bounded_ && (!is_linear_ || seen_to(first) < end || seen_from(last) > begin);
    }

    void add(std::int64_t query_piece, std::int64_t key_piece) {
        Pair pair{};
        pair.query = query_piece * query_piece_;
        pair.query_count = std::min(query_piece_, queries_.count - pair.query);
        pair.key = key_piece * key_piece_;
        pair.key_count = std::min(key_piece_, keys_.count - pair.key);
        pair.padding = key_piece == 0 ? base_.padding_keys : 0;
        if (pair.key_count <= 0 && pair.padding == 0)
            return;
        const std::int64_t last_query = pair.query + pair.query_count - 1, key_end = pair.key + pair.key_count;
        if ((seen_to(last_query) <= pair.key || seen_from(pair.query) >= key_end) && pair.padding == 0)
            return;
        pair.is_masked = hides(pair.query, last_query, pair.key, key_end);
        pair.offset = pair.is_masked && is_linear_ ? queries_[pair.query] - keys_[pair.key] : 0;
        if (pairs_ > 0 && (!pair.same_shape(first_) || pair.query != last_.query + query_piece_ ||
                           pair.key != last_.key + key_piece_))
            flush();
        if (pairs_ == 0)
            first_ = pair;
        last_ = pair;
        ++pairs_;
    }

    // Adds the pairs so far, which have equal shapes, as one set. Masked pairs are cut into slices of queries, each
    // with the keys that it sees.
    void flush() {
        if (pairs_ == 0)
            return;
        TileSet set = base_;
        set.query_stride = queries_.stride;
        set.key_stride = keys_.stride;
        set.padding_keys = first_.padding;
        set.steps = pairs_;
        set.query_step = query_piece_ * queries_.stride;
        set.key_step = key_piece_ * keys_.stride;
        std::int64_t slice = first_.query_count;
        if (first_.is_masked && is_linear_)
            slice = std::max(diagonal_queries,
                             divide_up(divide_up(set_queries, set.count()), row_alignment) * row_alignment);
        // The last slice comes first: under causality it sees the most keys.
        const std::int64_t last = (first_.query_count - 1) / slice * slice;
        for (std::int64_t from = last; from >= 0; from -= slice) {
            const std::int64_t count = std::min(slice, first_.query_count - from);
            const std::int64_t query = first_.query + from;
            const std::int64_t key = first_.key + keys_before(query), last_query = query + count - 1;
            const std::int64_t key_end = std::min(first_.key + first_.key_count, seen_to(last_query));
            const std::int64_t keys = key_end - key;
            if (keys <= 0 && first_.padding == 0)
                continue;
            set.queries = static_cast<std::int32_t>(count);
            set.keys = static_cast<std::int32_t>(std::max<std::int64_t>(0, keys));
            set.is_masked = first_.is_masked && hides(query, last_query, key, key_end);
            set.covers_queries = has_one_key_piece_;
            set.covers_keys = from == last && first_.query_count == queries_.count && keys == keys_.count;
            set.first_query = queries_[query];
            set.first_key = keys_[key];
            out_.push_back(set);
        }
        pairs_ = 0;
    }

    // Returns how many keys of the first pair come before the keys that a query sees. It is a multiple of the row
    // alignment.
    std::int64_t keys_before(std::int64_t query) const {
        return std::max<std::int64_t>(0, seen_from(query) - first_.key) / row_alignment * row_alignment;
    }

    const TileSet &base_;
    const Progression &queries_, &keys_;
    const bool is_window_, is_bounded_, is_linear_;
    std::vector<TileSet> &out_;
    std::int64_t query_piece_ = 1, key_piece_ = 1;
    bool has_one_key_piece_ = false;
    Pair first_{}, last_{};
    std::int64_t pairs_ = 0;
};

class BranchTiles {
  public:
    BranchTiles(const Plan &plan, const BranchPlan &branch, const Block &block, std::int64_t tile,
                std::vector<TileSet> &out)
        : plan_(plan), branch_(branch), block_(block), tile_(tile), out_(out) {
        // A rank has received only the keys that are near enough to some query of its shard. Rounding begins at the
        // first such key, and never reaches rows before it.
        const Window &queries = plan.problem().queries;
        if (branch.kind() == ANNULUS_BRANCH_WINDOW)
            block_.keys = intersect(block.keys, branch.bounds().keys(queries.start, queries.end() - 1));
    }

    void make() {
        const Window both = intersect(span_of_segments(block_.queries), span_of_segments(block_.keys));
        if (both.length == 0)
            return;
        const std::int64_t first = branch_.segment_of(both.start), last = branch_.segment_of(both.end() - 1);
        // Full segments inside both windows are equal. Every other segment has sets of its own.
        const std::int64_t full_end =
            std::min({block_.queries.end(), block_.keys.end(), plan_.problem().sequence_length}) /
            branch_.segment_length();
        for (std::int64_t i = first; i <= last;) {
            const std::int64_t alike = is_whole(i) ? std::max<std::int64_t>(1, full_end - i) : 1;
            add_segments(branch_.segment(i), alike);
            i += alike;
        }
    }

  private:
    // Returns the positions of all segments that a window touches.
    Window span_of_segments(const Window &window) const {
        if (window.length == 0)
            return {};
        const Window first = branch_.segment_at(window.start).range;
        const Window last = branch_.segment_at(window.end() - 1).range;
        return {first.start, last.end() - first.start};
    }

    bool is_whole(std::int64_t index) const {
        const Window range = branch_.segment(index).range;
        return intersect(range, block_.queries) == range && intersect(range, block_.keys) == range;
    }

    // Returns the places of a segment inside a window. Along a curve a window is no range of places. There packing
    // leaves out rows outside the window one by one.
    static Window places(const Segment &segment, const Window &window) {
        if (!segment.curve.is_linear())
            return {0, segment.range.length};
        const Window part = intersect(segment.range, window);
        return {part.start - segment.range.start, part.length};
    }

    void add_segments(const Segment &segment, std::int64_t count) {
        const Window queries = places(segment, block_.queries), keys = places(segment, block_.keys);
        if (queries.length == 0)
            return;
        TileSet base;
        base.segment_start = segment.range.start;
        base.segments = count;
        base.segment_length = segment.range.length;
        base.curve = segment.curve;
        base.bounds = branch_.bounds();
        base.has_absent_rows =
            !segment.curve.is_linear() && (intersect(segment.range, block_.queries) != segment.range ||
                                           intersect(segment.range, block_.keys) != segment.range);
        base.first_batch = block_.first_batch;
        base.batches = block_.batches;
        for (const HeadSet &set : branch_.head_sets(block_.first_head, block_.first_head + block_.heads))
            add_residues(base, segment, set, queries, keys);
    }

    // Splits the residues where the size of a class, or the offset of its first row from the residue, changes.
    void add_residues(const TileSet &base, const Segment &segment, const HeadSet &set, const Window &queries,
                      const Window &keys) {
        const std::int64_t r = branch_.dilation();
        const std::int64_t begin = set.first_residue, end = begin + set.residues;
        const bool queries_stay = !branch_.queries_are_class(); // the queries do not change with the residue
        std::array<std::int64_t, 6> ends{queries.start % r, queries.end() % r,        keys.start % r,
                                         keys.end() % r,    segment.range.length % r, end};
        std::sort(ends.begin(), ends.end());
        std::int64_t from = begin;
        const auto add_until = [&](std::int64_t to) {
            HeadSet part = set;
            part.first_residue = from;
            part.residues = to - from;
            part.first_head = static_cast<std::int32_t>(set.first_head + (from - begin) * set.head_step_residue);
            add_classes(base, segment, part);
            from = to;
        };
        while (queries_stay && from < end)
            add_until(from + 1);
        for (const std::int64_t end_of_part : ends)
            if (end_of_part > from && end_of_part <= end)
                add_until(end_of_part);
    }

    void add_classes(TileSet base, const Segment &segment, const HeadSet &set) {
        const ClassPair pair = clip(class_pair(branch_, segment, set.first_residue), block_.queries, block_.keys);
        if (pair.queries.count == 0 || (pair.keys.count == 0 && pair.padding_keys == 0))
            return;
        base.padding_keys = pair.padding_keys;
        base.head = set;
        ClassTiles(base, pair.queries, pair.keys, branch_, out_).divide(tile_);
    }

    const Plan &plan_;
    const BranchPlan &branch_;
    Block block_;
    const std::int64_t tile_;
    std::vector<TileSet> &out_;
};

} // namespace

void make_tiles(const Plan &plan, const BranchPlan &branch, const Block &block, std::int64_t tile,
                std::vector<TileSet> &sets) {
    BranchTiles(plan, branch, block, tile, sets).make();
}

bool may_share_keys(const BranchPlan &other, const TileSet &set) {
    if (set.keys == 0 || set.last_head() < other.first_head() ||
        set.head.first_head >= other.first_head() + other.head_count())
        return false;
    if (!set.curve.is_linear())
        return true;
    // For each step, the windows of its tiles' rows in the first segment.
    const auto rows = [&](std::int64_t first, std::int64_t count, std::int64_t stride) {
        return Window{set.segment_start + first, (count - 1) * stride + set.head.residues};
    };
    // True if the other branch cuts all segments of the set in the same way.
    const bool is_alike = set.segment_length % other.segment_length() == 0;
    for (std::int64_t step = 0; step < set.steps; ++step) {
        const Window queries = rows(set.first_query + step * set.query_step, set.queries, set.query_stride);
        const Window keys = rows(set.first_key + step * set.key_step, set.keys, set.key_stride);
        const std::int64_t gap = std::max(keys.start - (queries.end() - 1), queries.start - (keys.end() - 1));
        bool may_share = gap < other.segment_length();
        if (set.segments == 1)
            may_share = may_attend(other, queries, keys);
        else if (is_alike)
            may_share = segment_meets(other, queries, keys);
        if (may_share)
            return true;
    }
    return false;
}

} // namespace annulus
