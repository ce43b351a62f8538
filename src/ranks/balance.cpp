// SPDX-License-Identifier: Apache-2.0
#include "ranks/balance.hpp"

#include "ranks/shard_costs.hpp"
#include "ranks/steps.hpp"

#include <annulus/comm.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace annulus {

namespace {

// The loads of two ranks count as equal if they differ by at most this share.
constexpr double slack = 1.0 / 64;

// Shards other than even ones must make the busiest rank faster by this share: they cost more launches and messages.
constexpr double least_gain = 1.0 / 20;

// The steps of giving a sequence to a rank: it is found by size, and the rank moves to another place among the ranks.
constexpr std::int64_t steps_per_item = 32;
// How many pieces of the rest a step moves.
constexpr std::int64_t pieces_per_step = 2;

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
    explicit Rest(const ShardCosts &costs) : costs_(costs) {}

    // Adds a whole item, which comes after the items that were added.
    void add(const ShardCosts::Item &item) {
        pieces_.push_back({item.rows, &item, item.pairs});
        count_from(pieces_.size() - 1);
    }
    std::int64_t rows() const { return pieces_.empty() ? 0 : pieces_.back().end_row; }
    // Returns the pairs of rows first … first + count - 1.
    double pairs(std::int64_t first, std::int64_t count) const { return below(first + count) - below(first); }

    // Removes rows first … first + count - 1, and gives them to a rank. Takes steps for all pieces.
    void give(std::int64_t first, std::int64_t count, int rank, Assignment &assignment) {
        costs_.steps().take(static_cast<std::int64_t>(pieces_.size()) / pieces_per_step);
        std::vector<Piece> left;
        left.reserve(pieces_.size() + 1);
        const auto keep = [&](const Piece &piece, std::int64_t from, std::int64_t to) { // within the piece
            const Window part{piece.window.start + from, to - from};
            if (part.length == piece.window.length)
                left.push_back(piece);
            else if (part.length > 0)
                left.push_back({part, piece.item, costs_.pairs(*piece.item, part)});
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
        const ShardCosts::Item *item;
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
        return row == begin ? before : before + costs_.pairs(*piece->item, {piece->window.start, row - begin});
    }

    const ShardCosts &costs_;
    std::vector<Piece> pieces_;
};

// Returns the first row of `count` rows of the rest that have about `wanted` pairs. Takes rows at an end of the rest if
// their pairs are within the tolerance, since that cuts the rest once and not twice.
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
        std::int64_t high = last / steps * i + last % steps * i / steps;
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

// Gives whole items to ranks, the largest first, but not the `cut` largest. Then fills the ranks up with rows of the
// other items. Each rank then has its number of rows and, if such rows are left, about `share` pairs. Returns nothing
// if the steps run out.
std::optional<Shards> deal(const ShardCosts &costs, const std::vector<std::size_t> &by_size, std::size_t cut,
                           double share, int ranks) {
    const std::vector<ShardCosts::Item> &items = costs.items();
    if (!costs.steps().take(product(steps_per_item, static_cast<std::int64_t>(items.size()))))
        return std::nullopt;
    const double tolerance = share * slack;
    std::vector<std::int64_t> free = even_lengths(costs.rows(), ranks);
    std::vector<double> wanted(free.size(), share);
    std::vector<bool> is_given(items.size(), false);
    Assignment assignment;
    // The pairs that each of the rank's free rows should have.
    const auto density = [&](std::size_t rank) {
        return free[rank] > 0 ? wanted[rank] / static_cast<double>(free[rank]) : 0;
    };
    std::set<std::pair<double, std::size_t>> by_density; // the densities, negated, and the ranks
    for (std::size_t rank = 0; rank < free.size(); ++rank)
        by_density.emplace(-density(rank), rank);
    for (std::size_t i = cut; i < by_size.size(); ++i) {
        const ShardCosts::Item &item = items[by_size[i]];
        std::int64_t looks = 1;
        const auto best = std::ranges::find_if(by_density, [&](const auto &entry) {
            const std::size_t rank = entry.second;
            ++looks;
            return free[rank] >= item.rows.length && wanted[rank] + tolerance >= item.pairs;
        });
        if (!costs.steps().take(looks))
            return std::nullopt;
        if (best == by_density.end())
            continue;
        const std::size_t rank = best->second;
        is_given[by_size[i]] = true;
        assignment.push_back({item.rows, static_cast<int>(rank)});
        free[rank] -= item.rows.length;
        wanted[rank] -= item.pairs;
        by_density.erase(best);
        by_density.emplace(-density(rank), rank);
    }
    Rest rest(costs);
    for (std::size_t i = 0; i < items.size(); ++i)
        if (!is_given[i])
            rest.add(items[i]);
    std::vector<std::size_t> order(free.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), density);
    for (const std::size_t rank : order) {
        if (free[rank] > 0)
            rest.give(find_rows(rest, free[rank], wanted[rank], tolerance), free[rank], static_cast<int>(rank),
                      assignment);
        if (costs.steps().ran_out())
            return std::nullopt;
    }
    return shards_of(std::move(assignment), ranks);
}

Shards zigzag_shards(std::int64_t rows, int ranks) {
    std::vector<int> owners;
    for (int i = 0; i < 2 * ranks; ++i)
        owners.push_back(std::min(i, 2 * ranks - 1 - i));
    return make_shards(even_lengths(rows, 2 * ranks), owners, ranks);
}

} // namespace

Shards balance_shards(const Pattern &pattern, const CallProblem &problem, int ranks, std::int64_t max_steps) {
    Steps steps(max_steps);
    const ShardCosts costs(pattern, problem, steps);
    Shards best = make_shards(even_lengths(costs.rows(), ranks));
    if (ranks == 1)
        return best;
    double least = costs.of_busiest_rank(best, ranks) * (1 - least_gain);
    const auto consider = [&](Shards &&shards) {
        if (shards.pieces.size() > std::size_t{ANNULUS_MAX_SHARDS})
            return;
        if (const double cost = costs.of_busiest_rank(shards, ranks); cost < least) {
            least = cost * (1 - slack);
            best = std::move(shards);
        }
    };
    consider(zigzag_shards(costs.rows(), ranks));

    const std::vector<ShardCosts::Item> &items = costs.items();
    const double share = costs.pairs() / ranks; // no shards cost less
    std::vector<std::size_t> by_size;
    for (std::size_t i = 0; i < items.size(); ++i)
        if (!items[i].is_gap())
            by_size.push_back(i);
    std::ranges::stable_sort(by_size, std::greater(), [&](std::size_t i) { return items[i].pairs; });
    // Sequences with more pairs than a rank should have are cut in any case. Cutting a few of the next ones often lets
    // all others stay whole.
    const auto small =
        std::ranges::partition_point(by_size, [&](std::size_t i) { return items[i].pairs > share * (1 + slack); });
    const auto least_cut = static_cast<std::size_t>(small - by_size.begin());
    std::vector<std::size_t> cuts{least_cut};
    if (least_cut < by_size.size())
        cuts.push_back(by_size.size());
    for (std::size_t cut = least_cut + 1; cut < by_size.size(); cut += 1 + (cut - least_cut) / 4)
        cuts.push_back(cut);
    for (const std::size_t cut : cuts) {
        if (share >= least || steps.ran_out())
            break;
        if (std::optional<Shards> shards = deal(costs, by_size, cut, share, ranks))
            consider(std::move(*shards));
    }
    return best;
}

} // namespace annulus
