// SPDX-License-Identifier: Apache-2.0
#include "ranks/balance.hpp"

#include "ranks/steps.hpp"

#include <annulus/comm.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace annulus {

namespace {

// How many (query, key) pairs of a head a GPU computes in the time that it waits for the row of K and of V of a
// key/value head. By data sheets, not measured: 4 D FLOPs a pair at 500 TFLOP/s, and 4 D bytes a row in bfloat16 at
// 250 GB/s, are 2000 pairs; three quarters of the rows come while the GPU computes.
constexpr double pairs_per_row = 500;

// Loads are as good as one another within this share of a rank's.
constexpr double slack = 1.0 / 64;

// Shards other than even ones must make the busiest rank faster by this share: several shards have more launches and
// messages.
constexpr double least_gain = 1.0 / 20;

// The most pairs of a rank and a sequence that are looked at, each in some nanoseconds.
constexpr std::int64_t max_steps = std::int64_t{1} << 26;

// What the rows of a problem cost.
class Costs {
  public:
    Costs(const Pattern &pattern, const CallProblem &problem) : rows_(problem.rows.sequence_length) {
        sequences_ = problem.sequences;
        if (sequences_.empty())
            sequences_.push_back({0, problem.rows.batch, {0, rows_}});
        std::erase_if(sequences_, [](const Sequence &sequence) { return sequence.rows.length == 0; });
        std::ranges::stable_sort(sequences_, {}, [](const Sequence &sequence) { return sequence.rows.start; });
        for (const Sequence &sequence : sequences_) {
            const std::pair key(sequence.batches, sequence.rows.length);
            auto found = plans_.find(key);
            if (found == plans_.end())
                found = plans_.emplace(key, Plan(pattern, problem_of(problem.rows, sequence))).first;
            sequence_plans_.push_back(&found->second);
        }
        std::int64_t end = 0;
        for (std::size_t i = 0; i < sequences_.size(); ++i) {
            const Window &own = sequences_[i].rows;
            if (own.start > end)
                items_.push_back({{end, own.start - end}, i, i});
            if (own.start >= end)
                items_.push_back({own, i, i});
            Item &item = items_.back();
            item.last = i + 1;
            end = std::max(end, own.end());
            item.rows.length = end - item.rows.start;
        }
        if (end < rows_)
            items_.push_back({{end, rows_ - end}, sequences_.size(), sequences_.size()});
    }

    std::int64_t rows() const { return rows_; }

    // Rows that should stay together: a sequence; sequences of several batch entries that overlap; or rows of no
    // sequence. They are in order and cover all rows.
    struct Item {
        Window rows;
        std::size_t first, last; // its sequences

        bool is_gap() const { return first == last; }
    };
    const std::vector<Item> &items() const { return items_; }

    // Returns the index of the item that has a row.
    std::size_t item_at(std::int64_t row) const {
        const auto after =
            std::ranges::partition_point(items_, [&](const Item &item) { return item.rows.start <= row; });
        return static_cast<std::size_t>(after - items_.begin()) - 1;
    }

    // Returns the pairs of the queries in a window, which is in one item.
    double pairs(const Item &item, const Window &window) const {
        double sum = 0;
        for (std::size_t i = item.first; i < item.last; ++i) {
            const Window part = intersect(window, sequences_[i].rows);
            if (part.length == 0)
                continue;
            Problem problem = sequence_plans_[i]->problem();
            problem.queries = {part.start - sequences_[i].rows.start, part.length};
            for (const BranchPlan &branch : sequence_plans_[i]->branches())
                sum += branch.pairs(problem) * static_cast<double>(problem.batch);
        }
        return sum;
    }

    // Returns about how many rows of key/value heads the queries of `windows[index]` need of rows outside of `windows`,
    // which all are a rank's windows in one item.
    double received_rows(const Item &item, const std::vector<Window> &windows, std::size_t index) const {
        double sum = 0;
        for (std::size_t i = item.first; i < item.last; ++i) {
            const Sequence &sequence = sequences_[i];
            const Window part = intersect(windows[index], sequence.rows);
            if (part.length == 0)
                continue;
            const Plan &plan = *sequence_plans_[i];
            const std::int64_t first = part.start - sequence.rows.start, last = first + part.length - 1;
            double rows = 0, most = 0;
            for (const BranchPlan &branch : plan.branches()) {
                const std::int64_t start = branch.segment_at(first).range.start;
                const std::int64_t end = plan.causal() ? last + 1 : branch.segment_at(last).range.end();
                const Window reached{sequence.rows.start + start, end - start};
                std::int64_t outside = reached.length;
                for (const Window &own : windows)
                    outside -= intersect(reached, own).length;
                rows += static_cast<double>(outside) * heads_of_row(plan, branch);
                most = std::max(most, static_cast<double>(outside) * plan.problem().kv_heads);
            }
            sum += std::min(rows, most) * static_cast<double>(sequence.batches);
        }
        return sum;
    }

  private:
    // Returns how many key/value heads want a key of a segment, on average over the keys.
    static double heads_of_row(const Plan &plan, const BranchPlan &branch) {
        const Problem &problem = plan.problem();
        const std::int32_t group = problem.heads / problem.kv_heads;
        const std::int64_t r = branch.dilation();
        const std::int64_t residues = branch.residues(branch.first_head(), branch.first_head() + group).count;
        return static_cast<double>(std::min(residues, r)) / static_cast<double>(r) *
               std::min(problem.kv_heads, static_cast<std::int32_t>(divide_up(branch.head_count(), group)));
    }

    std::int64_t rows_;
    std::vector<Sequence> sequences_;
    std::map<std::pair<std::int64_t, std::int64_t>, Plan> plans_; // by batch entries and length
    std::vector<const Plan *> sequence_plans_;
    std::vector<Item> items_;
};

// Which rank has which rows, in any order.
using Assignment = std::vector<std::pair<Window, int>>;

Shards shards_of(Assignment assignment, int ranks) {
    std::ranges::sort(assignment, {}, [](const auto &entry) { return entry.first.start; });
    std::vector<std::int64_t> lengths;
    std::vector<int> owners;
    for (const auto &[window, owner] : assignment) {
        lengths.push_back(window.length);
        owners.push_back(owner);
    }
    return make_shards(lengths, owners, ranks);
}

// Rows that no rank has yet, and the pairs of their queries. They are numbered 0, 1, 2, … in order of their positions.
class Rest {
  public:
    explicit Rest(const Costs &costs) : costs_(costs) {}

    void add(std::size_t item, const Window &window) { // after the windows before it
        pieces_.push_back({window, item, costs_.pairs(costs_.items()[item], window)});
        count_from(pieces_.size() - 1);
    }
    std::int64_t rows() const { return pieces_.empty() ? 0 : pieces_.back().end_row; }
    // Returns the pairs of rows first … first + count - 1.
    double pairs(std::int64_t first, std::int64_t count) const { return below(first + count) - below(first); }

    // Removes rows first … first + count - 1, and gives them to a rank.
    void give(std::int64_t first, std::int64_t count, int rank, Assignment &assignment) {
        std::vector<Piece> left;
        const auto keep = [&](const Piece &piece, std::int64_t from, std::int64_t to) { // within the piece
            const Window part{piece.window.start + from, to - from};
            if (part.length == piece.window.length)
                left.push_back(piece);
            else if (part.length > 0)
                left.push_back({part, piece.item, costs_.pairs(costs_.items()[piece.item], part)});
        };
        for (const Piece &piece : pieces_) {
            const std::int64_t begin = piece.end_row - piece.window.length, length = piece.window.length;
            const std::int64_t from = std::clamp<std::int64_t>(first - begin, 0, length);
            const std::int64_t to = std::clamp<std::int64_t>(first + count - begin, 0, length);
            if (from < to)
                assignment.push_back({{piece.window.start + from, to - from}, rank});
            keep(piece, 0, from < to ? from : length);
            if (from < to)
                keep(piece, to, length);
        }
        pieces_ = std::move(left);
        count_from(0);
    }

  private:
    struct Piece {
        Window window;
        std::size_t item;
        double pairs;
        std::int64_t end_row = 0; // the number of rows up to its end
        double end_pairs = 0;
    };

    void count_from(std::size_t first) {
        for (std::size_t i = first; i < pieces_.size(); ++i) {
            pieces_[i].end_row = pieces_[i].window.length + (i > 0 ? pieces_[i - 1].end_row : 0);
            pieces_[i].end_pairs = pieces_[i].pairs + (i > 0 ? pieces_[i - 1].end_pairs : 0);
        }
    }

    // Returns the pairs of the rows before a row.
    double below(std::int64_t row) const {
        const auto piece = std::ranges::partition_point(pieces_, [&](const Piece &p) { return p.end_row <= row; });
        if (piece == pieces_.end())
            return pieces_.empty() ? 0 : pieces_.back().end_pairs;
        const std::int64_t begin = piece->end_row - piece->window.length;
        const double before = piece->end_pairs - piece->pairs;
        return row == begin ? before
                            : before + costs_.pairs(costs_.items()[piece->item], {piece->window.start, row - begin});
    }

    const Costs &costs_;
    std::vector<Piece> pieces_;
};

// Returns the first row of `count` rows of the rest that have about `wanted` pairs: at one end if those do, since that
// cuts fewest rows apart.
std::int64_t find_rows(const Rest &rest, std::int64_t count, double wanted, double tolerance) {
    const std::int64_t last = rest.rows() - count;
    const auto excess = [&](std::int64_t first) { return rest.pairs(first, count) - wanted; };
    std::int64_t best = 0;
    double least = std::abs(excess(0));
    const auto consider = [&](std::int64_t first) {
        const double found = excess(first);
        if (std::abs(found) < least) {
            least = std::abs(found);
            best = first;
        }
        return found;
    };
    if (least <= tolerance)
        return 0;
    if (std::abs(consider(last)) <= tolerance)
        return last;
    // The excess changes little from one row to the next. So it is small somewhere between two rows with opposite
    // signs, which are searched for in steps.
    constexpr std::int64_t steps = 32;
    std::int64_t low = 0;
    const bool is_positive = excess(0) > 0;
    for (std::int64_t i = 1; i <= steps; ++i) {
        std::int64_t high = static_cast<std::int64_t>(static_cast<double>(last) * static_cast<double>(i) / steps);
        if ((consider(high) > 0) == is_positive) {
            low = high;
            continue;
        }
        while (high - low > 1 && least > tolerance / 16) {
            const std::int64_t middle = low + (high - low) / 2;
            ((consider(middle) > 0) == is_positive ? low : high) = middle;
        }
        break;
    }
    return best;
}

// Gives whole items to ranks, the largest first, but not the `cut` largest. Then it fills the ranks up with rows of the
// other items, such that all ranks have their rows, and as many pairs as the others if there are such rows.
Shards deal(const Costs &costs, const std::vector<std::size_t> &by_size, const std::vector<double> &item_pairs,
            std::size_t cut, int ranks) {
    std::vector<std::int64_t> free = even_lengths(costs.rows(), ranks);
    const double share = std::accumulate(item_pairs.begin(), item_pairs.end(), 0.0) / ranks, tolerance = share * slack;
    std::vector<double> wanted(free.size(), share);
    std::vector<bool> is_given(item_pairs.size(), false);
    Assignment assignment;
    // The pairs that each of the rank's free rows should have.
    const auto density = [&](std::size_t rank) {
        return free[rank] > 0 ? wanted[rank] / static_cast<double>(free[rank]) : 0;
    };
    for (std::size_t i = cut; i < by_size.size(); ++i) {
        const std::size_t index = by_size[i];
        const Window &rows = costs.items()[index].rows;
        std::optional<std::size_t> best;
        for (std::size_t rank = 0; rank < free.size(); ++rank)
            if (free[rank] >= rows.length && wanted[rank] + tolerance >= item_pairs[index] &&
                (!best || density(rank) > density(*best)))
                best = rank;
        if (!best)
            continue;
        is_given[index] = true;
        assignment.push_back({rows, static_cast<int>(*best)});
        free[*best] -= rows.length;
        wanted[*best] -= item_pairs[index];
    }
    Rest rest(costs);
    for (std::size_t i = 0; i < is_given.size(); ++i)
        if (!is_given[i])
            rest.add(i, costs.items()[i].rows);
    std::vector<std::size_t> order(free.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), density);
    for (const std::size_t rank : order)
        if (free[rank] > 0)
            rest.give(find_rows(rest, free[rank], wanted[rank], tolerance), free[rank], static_cast<int>(rank),
                      assignment);
    return shards_of(std::move(assignment), ranks);
}

// Returns what the busiest rank has to do, in pairs.
double cost_of(const Costs &costs, const Shards &shards, int ranks) {
    std::vector<double> costs_of_ranks(static_cast<std::size_t>(ranks));
    std::map<int, std::vector<Window>> windows; // of an item, by rank
    std::size_t shard = 0;
    for (const Costs::Item &item : costs.items()) {
        if (item.is_gap())
            continue;
        windows.clear();
        while (shards.pieces[shard].end() <= item.rows.start)
            ++shard;
        for (std::size_t i = shard; i < shards.pieces.size() && shards.pieces[i].start < item.rows.end(); ++i)
            if (const Window part = intersect(shards.pieces[i], item.rows); part.length > 0)
                windows[shards.owners[i]].push_back(part);
        for (const auto &[rank, own] : windows)
            for (std::size_t i = 0; i < own.size(); ++i) {
                double &cost = costs_of_ranks[static_cast<std::size_t>(rank)];
                cost += costs.pairs(item, own[i]);
                if (own[i].length < item.rows.length)
                    cost += pairs_per_row * costs.received_rows(item, own, i);
            }
    }
    return std::ranges::max(costs_of_ranks);
}

Shards zigzag_shards(std::int64_t rows, int ranks) {
    std::vector<int> owners;
    for (int i = 0; i < 2 * ranks; ++i)
        owners.push_back(std::min(i, 2 * ranks - 1 - i));
    return make_shards(even_lengths(rows, 2 * ranks), owners, ranks);
}

} // namespace

Shards balance_shards(const Pattern &pattern, const CallProblem &problem, int ranks) {
    const Costs costs(pattern, problem);
    Shards best = make_shards(even_lengths(costs.rows(), ranks));
    if (ranks == 1)
        return best;
    double least = cost_of(costs, best, ranks) * (1 - least_gain);
    const auto consider = [&](Shards &&shards) {
        if (shards.pieces.size() > std::size_t{ANNULUS_MAX_SHARDS})
            return;
        if (const double cost = cost_of(costs, shards, ranks); cost < least) {
            least = cost * (1 - slack);
            best = std::move(shards);
        }
    };
    consider(zigzag_shards(costs.rows(), ranks));

    std::vector<double> item_pairs;
    std::vector<std::size_t> by_size;
    for (std::size_t i = 0; i < costs.items().size(); ++i) {
        const Costs::Item &item = costs.items()[i];
        item_pairs.push_back(costs.pairs(item, item.rows));
        if (!item.is_gap())
            by_size.push_back(i);
    }
    std::ranges::stable_sort(by_size, std::greater(), [&](std::size_t i) { return item_pairs[i]; });
    // Cutting a few of the largest sequences often lets all others stay whole.
    std::vector<std::size_t> cuts{0};
    for (std::size_t cut = 1; cut < by_size.size(); cut += 1 + cut / 4)
        cuts.push_back(cut);
    cuts.push_back(by_size.size());
    const double share = std::accumulate(item_pairs.begin(), item_pairs.end(), 0.0) / ranks; // no shards cost less
    Steps steps(max_steps);
    for (const std::size_t cut : cuts)
        if (share < least && steps.take(static_cast<std::int64_t>(item_pairs.size()) * ranks))
            consider(deal(costs, by_size, item_pairs, cut, ranks));
    return best;
}

} // namespace annulus
