// SPDX-License-Identifier: Apache-2.0
// Counts keys by calls of forward. All scores are 0, so each key that a query attends to has the same weight. The
// values of a key are 1 in the column of the key's cell and 0 elsewhere. O · exp(LSE) then counts the keys of each
// cell.
#include "cli/commands/pattern_picture.hpp"

#include "cli/arrays/host_tensor.hpp"
#include "cli/devices/handles.hpp"
#include "cli/report/svg.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace annulus::cli {

namespace {

constexpr std::int64_t max_tokens = 2048, min_cells = 32, max_cells = 128;
constexpr std::int32_t max_heads = 64;
constexpr std::int32_t max_shards = 64; // above this, without borders

// The cells of one head: how often each query of a cell attends to each of its keys, on average. [queries][keys]
using Cells = std::vector<std::vector<double>>;

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

// Returns the number of positions of a cell. It is 1 unless the sequence has more than max_cells positions. It is a
// multiple of all dilations if that leaves enough cells. Otherwise cells would have unequal numbers of positions of a
// residue. The means would then show a lattice that the pattern does not have.
std::int64_t cell_of(const annulus_config *config, std::int64_t tokens) {
    const std::int64_t cell = divide_up(tokens, max_cells), longest = tokens / min_cells;
    std::int64_t dilation = 1;
    for (const annulus_branch &branch : get_branches(config)) {
        if (branch.dilation > longest)
            return cell;
        dilation = std::lcm(dilation, branch.dilation);
        if (dilation > longest)
            return cell;
    }
    const std::int64_t whole = divide_up(cell, dilation) * dilation;
    return cell > 1 && whole <= longest ? whole : cell;
}

class Counter {
  public:
    Counter(const annulus_config *config, std::int64_t tokens, std::int32_t heads)
        : tokens_(tokens), heads_(heads), cell_(cell_of(config, tokens)), cells_(divide_up(tokens, cell_)),
          dim_((cells_ + 7) / 8 * 8), context_(create_context({ANNULUS_DEVICE_CPU, 0})), keys_(numbers(tokens * dim_)),
          values_(numbers(tokens * dim_)), queries_(numbers(cell_ * heads * dim_)), out_(queries_),
          lse_(numbers(cell_ * heads)) {
        check(annulus_context_set_config(context_.get(), config));
        for (std::int64_t n = 0; n < tokens; ++n)
            values_[static_cast<std::size_t>(n * dim_ + n / cell_)] = 1;
    }

    std::int64_t positions_of_cell() const { return cell_; }

    // Returns the cells of each head.
    std::vector<Cells> count() {
        const auto side = static_cast<std::size_t>(cells_);
        std::vector<Cells> heads(static_cast<std::size_t>(heads_), Cells(side, std::vector<double>(side)));
        for (std::int64_t i = 0; i < cells_; ++i)
            count_row(i, heads);
        return heads;
    }

  private:
    static std::vector<double> numbers(std::int64_t count) {
        return std::vector<double>(static_cast<std::size_t>(count));
    }
    std::int64_t positions(std::int64_t cell) const { return std::min(cell_, tokens_ - cell * cell_); }

    void count_row(std::int64_t row, std::vector<Cells> &heads) {
        const std::int64_t queries = positions(row);
        const Shape query_shape = {1, queries, heads_, dim_}, key_shape = {1, tokens_, 1, dim_};
        const annulus_tensor q = view(queries_.data(), ANNULUS_FLOAT64, query_shape);
        const annulus_tensor k = view(keys_.data(), ANNULUS_FLOAT64, key_shape);
        const annulus_tensor v = view(values_.data(), ANNULUS_FLOAT64, key_shape);
        const annulus_tensor out = view(out_.data(), ANNULUS_FLOAT64, query_shape);
        const annulus_tensor lse = view(lse_.data(), ANNULUS_FLOAT64, {1, heads_, queries});
        annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
        options.flags = ANNULUS_CALL_QUERY_WINDOW;
        options.query_start = row * cell_;
        check(annulus_forward(context_.get(), &q, &k, &v, &out, &lse, &options));
        for (std::size_t h = 0; h < heads.size(); ++h) {
            std::vector<double> &cells = heads[h][static_cast<std::size_t>(row)];
            for (std::size_t j = 0; j < cells.size(); ++j) {
                double keys = 0;
                for (std::int64_t n = 0; n < queries; ++n) {
                    const auto at = static_cast<std::size_t>(n * heads_) + h;
                    const double total =
                        std::exp(lse_[h * static_cast<std::size_t>(queries) + static_cast<std::size_t>(n)]);
                    keys += std::round(out_[at * static_cast<std::size_t>(dim_) + j] * total);
                }
                cells[j] = keys / static_cast<double>(queries * positions(static_cast<std::int64_t>(j)));
            }
        }
    }

    std::int64_t tokens_;
    std::int32_t heads_;
    std::int64_t cell_, cells_, dim_;
    Context context_;
    std::vector<double> keys_, values_, queries_, out_, lse_;
};

// A pattern, and the heads that use it.
struct Panel {
    Cells cells;
    std::vector<std::size_t> heads;
};

std::vector<Panel> panels_of(const std::vector<Cells> &heads) {
    std::vector<Panel> panels;
    for (std::size_t h = 0; h < heads.size(); ++h) {
        const auto same = std::ranges::find(panels, heads[h], &Panel::cells);
        if (same == panels.end())
            panels.push_back({heads[h], {h}});
        else
            same->heads.push_back(h);
    }
    return panels;
}

// Returns text such as "0-3, 8".
std::string ranges_text(const std::vector<std::size_t> &numbers) {
    std::string text;
    for (std::size_t i = 0; i < numbers.size();) {
        std::size_t last = i;
        while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1)
            ++last;
        text += (text.empty() ? "" : ", ") + std::to_string(numbers[i]);
        if (last > i)
            text.append(1, '-').append(std::to_string(numbers[last]));
        i = last + 1;
    }
    return text;
}

// The shades of the picture, from few keys to the most.
class Scale {
  public:
    Scale(const std::vector<Panel> &panels, bool cells_are_pairs) : is_exact_(cells_are_pairs) {
        for (const Panel &panel : panels)
            for (const std::vector<double> &row : panel.cells)
                largest_ = std::max(largest_, std::ranges::max(row));
        if (is_exact_ && largest_ <= 4)
            shades_ = static_cast<int>(largest_);
    }

    int shades() const { return shades_; }
    // Returns 0 for no key, otherwise 1 to shades().
    int shade(double keys) const {
        return keys > 0 ? static_cast<int>(std::ceil(keys / largest_ * shades_ - 1e-9)) : 0;
    }
    std::string fill(int shade) const {
        return "class=\"mark\" data-shade=\"" + std::to_string(shade) + "\" fill-opacity=\"" +
               Svg::number(0.15 + 0.85 * shade / shades_) + "\"";
    }
    std::string label(int shade) const {
        const bool is_one_number = is_exact_ && largest_ == shades_;
        return (is_one_number ? "" : "up to ") + number_text(largest_ * shade / shades_, 3);
    }

  private:
    bool is_exact_;
    double largest_ = 0;
    int shades_ = 4;
};

// Returns a path of the cells of one shade, in units of cells. It has a rectangle for each run of equal cells in a row.
std::string path_of(const Cells &cells, const Scale &scale, int shade) {
    std::string path;
    for (std::size_t i = 0; i < cells.size(); ++i)
        for (std::size_t j = 0, end; j < cells.size(); j = end) {
            end = j + 1;
            if (scale.shade(cells[i][j]) != shade)
                continue;
            while (end < cells.size() && scale.shade(cells[i][end]) == shade)
                ++end;
            const std::string length = std::to_string(end - j);
            path.append("M").append(std::to_string(j)).append(" ").append(std::to_string(i));
            path.append("h").append(length).append("v1h-").append(length).append("z");
        }
    return path;
}

// Draws lines between the rows and columns of different ranks, and the ranks' numbers at the left. `unit` is the length
// of a position.
void draw_borders(Svg &svg, double left, double top, double side, double unit, const Shards &shards, int ranks) {
    constexpr double letters = 12; // height of the text
    for (int rank = 0; rank < ranks; ++rank)
        for (const Range &range : shards.ranges(rank)) {
            const double start = unit * static_cast<double>(range.start);
            const double length = unit * static_cast<double>(range.length);
            if (range.start > 0 && range.length > 0)
                svg.raw("<path class=\"border\" data-position=\"" + std::to_string(range.start) + "\" d=\"M" +
                        Svg::number(left) + " " + Svg::number(top + start) + "h" + Svg::number(side) + "M" +
                        Svg::number(left + start) + " " + Svg::number(top) + "v" + Svg::number(side) + "\"/>");
            if (length >= letters)
                svg.text(left - 5, top + start + length / 2 + 4, std::to_string(rank), Svg::Anchor::end);
        }
}

} // namespace

std::string draw_pattern(const annulus_config *config, std::int64_t tokens, std::int32_t heads, const Shards &shards,
                         int ranks, const std::string &caption) {
    if (tokens < 1 || tokens > max_tokens || heads < 1 || heads > max_heads)
        throw bad_input("--svg draws from 1 to " + std::to_string(max_tokens) + " tokens and from 1 to " +
                        std::to_string(max_heads) + " heads; there are " + std::to_string(tokens) + " and " +
                        std::to_string(heads));
    Counter counter(config, tokens, heads);
    const std::vector<Panel> panels = panels_of(counter.count());
    const std::int64_t cell = counter.positions_of_cell();
    const Scale scale(panels, cell == 1);

    constexpr double side = 256, gap = 24, left = 40;
    const double top = ranks > 1 ? 110 : 90;
    const std::size_t columns = std::min<std::size_t>(panels.size(), 4), rows = (panels.size() + columns - 1) / columns;
    const double width = std::max(left + static_cast<double>(columns) * (side + gap), 2 * (side + gap) + left);
    Svg svg(width, top + static_cast<double>(rows) * (side + 2 * gap), caption);
    svg.text(left, 24, caption);
    const std::string size = std::to_string(cell);
    svg.text(left, 44,
             cell == 1 ? "how often a query (row) attends to a key (column):"
                       : "how often a query (row) attends to a key (column), on average in cells of " + size + " x " +
                             size + " positions:");
    double x = left;
    for (int shade = 1; shade <= scale.shades(); ++shade, x += 108) {
        svg.rectangle(x, 54, 12, 12, scale.fill(shade));
        svg.text(x + 16, 64, scale.label(shade));
    }
    const bool has_borders = ranks > 1 && shards.count() <= max_shards;
    if (has_borders)
        svg.text(left, 88, "lines: borders of the ranks' tokens; numbers at the left: the rank that has the rows");
    else if (ranks > 1)
        svg.text(left, 88, "without borders of the ranks' tokens: there are more than " + std::to_string(max_shards));
    for (std::size_t p = 0; p < panels.size(); ++p) {
        const std::size_t row = p / columns, column = p % columns;
        const double panel_x = left + static_cast<double>(column) * (side + gap);
        const double panel_y = top + static_cast<double>(row) * (side + 2 * gap) + 8;
        const auto count = static_cast<double>(panels[p].cells.size());
        svg.text(panel_x, panel_y - 6,
                 (panels[p].heads.size() == 1 ? "head " : "heads ") + ranges_text(panels[p].heads));
        svg.raw("<g data-heads=\"" + ranges_text(panels[p].heads) +
                "\" shape-rendering=\"crispEdges\" transform=\"translate(" + Svg::number(panel_x) + " " +
                Svg::number(panel_y) + ") scale(" + Svg::number(side / count) + ")\">");
        for (int shade = 1; shade <= scale.shades(); ++shade)
            if (const std::string path = path_of(panels[p].cells, scale, shade); !path.empty())
                svg.raw("<path " + scale.fill(shade) + " d=\"" + path + "\"/>");
        svg.raw("</g>");
        if (has_borders)
            draw_borders(svg, panel_x, panel_y, side, side / count / static_cast<double>(cell), shards, ranks);
        svg.rectangle(panel_x, panel_y, side, side, "class=\"faint\"");
    }
    return svg.document();
}

} // namespace annulus::cli
