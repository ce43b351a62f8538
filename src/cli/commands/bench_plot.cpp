// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_plot.hpp"

#include "cli/report/svg.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <variant>
#include <vector>

namespace annulus::cli {

namespace {

// What is shown of a table, by the keys of its columns.
struct Selection {
    const char *table, *title;
    std::vector<const char *> names;
    const char *value;
};

const std::vector<Selection> &selections() {
    static const std::vector<Selection> all = {
        {"cases", "Rate: more is better", {"case", "pass"}, "flops_per_second"},
        {"scaling",
         "Forward, time of a token by the number of tokens: less is better",
         {"tokens"},
         "seconds_per_token"},
        {"scaling_backward",
         "Backward, time of a token by the number of tokens: less is better",
         {"tokens"},
         "seconds_per_token"},
        {"sequences", "Rate of the packed sequences: more is better", {"pass"}, "pairs_per_second"}};
    return all;
}

struct Bar {
    std::string name, text;
    double value;
    bool is_backward;
};

struct Chart {
    std::string title;
    std::vector<Bar> bars;
};

const Cell &cell_of(const Table &table, const std::vector<Cell> &row, std::string_view key) {
    return row[static_cast<std::size_t>(std::ranges::find(table.columns, key, &Column::key) - table.columns.begin())];
}

Chart chart_of(const Table &table, const Selection &selection) {
    Chart chart{selection.title, {}};
    for (const std::vector<Cell> &row : table.rows) {
        std::vector<std::string> names;
        for (const char *key : selection.names)
            names.push_back(cell_of(table, row, key).text);
        const Cell &value = cell_of(table, row, selection.value);
        chart.bars.push_back(
            {joined(names, ", "), value.text, std::get<double>(value.value), names.back() == "backward"});
    }
    return chart;
}

} // namespace

std::string draw_bench(const Report &report) {
    constexpr double row = 20, margin = 16, length = 400, letter = 6.8; // pixels
    std::vector<Chart> charts;
    double names = 0, height = margin;
    for (const Table &table : report.tables())
        for (const Selection &selection : selections())
            if (table.key == selection.table) {
                charts.push_back(chart_of(table, selection));
                height += row * static_cast<double>(charts.back().bars.size() + 2);
                for (const Bar &bar : charts.back().bars)
                    names = std::max(names, letter * static_cast<double>(bar.name.size()));
            }
    Svg svg(names + length + 8 * margin, height, "annulus bench");
    double y = margin;
    for (const Chart &chart : charts) {
        double largest = 0;
        for (const Bar &bar : chart.bars)
            largest = std::max(largest, bar.value);
        svg.text(margin, y + 14, chart.title);
        for (const Bar &bar : chart.bars) {
            y += row;
            svg.text(margin, y + 14, bar.name);
            const double width = largest > 0 ? length * bar.value / largest : 0;
            const std::string color = bar.is_backward ? "second" : "mark";
            svg.rectangle(names + 2 * margin, y + 3, width, row - 6, "class=\"" + color + "\"");
            svg.text(names + 2 * margin + width + 6, y + 14, bar.text);
        }
        y += 2 * row;
    }
    return svg.document();
}

} // namespace annulus::cli
