// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_plot.hpp"

#include "cli/report/svg.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <string_view>
#include <variant>
#include <vector>

namespace annulus::cli {

namespace {

// Says what to draw of a table, by the keys of its columns. Each such table also has the columns seconds, seconds_min
// and seconds_max, the time of a call.
struct Selection {
    const char *table, *title;
    std::vector<const char *> names;
    const char *value;
    bool is_rate; // otherwise a time
};

const std::vector<Selection> &selections() {
    static const std::vector<Selection> all = {
        {"cases", "Rate: more is better", {"case", "pass"}, "flops_per_second", true},
        {"scaling",
         "Forward, time of a token by the number of tokens: less is better",
         {"tokens"},
         "seconds_per_token",
         false},
        {"scaling_backward",
         "Backward, time of a token by the number of tokens: less is better",
         {"tokens"},
         "seconds_per_token",
         false},
        {"sequences", "Rate of the packed sequences: more is better", {"pass"}, "pairs_per_second", true}};
    return all;
}

struct Bar {
    std::string name, text;
    double value, least, most; // median, lowest and highest of all repeats
    bool is_backward;
};

struct Chart {
    std::string title;
    std::vector<Bar> bars;
};

const Cell *find_cell(const Table &table, const std::vector<Cell> &row, std::string_view key) {
    const auto column = std::ranges::find(table.columns, key, &Column::key);
    return column == table.columns.end() ? nullptr : &row[static_cast<std::size_t>(column - table.columns.begin())];
}

double number_of(const Table &table, const std::vector<Cell> &row, std::string_view key) {
    return std::get<double>(find_cell(table, row, key)->value);
}

Chart chart_of(const Table &table, const Selection &selection) {
    Chart chart{selection.title, {}};
    for (const std::vector<Cell> &row : table.rows) {
        std::vector<std::string> names;
        for (const char *key : selection.names)
            names.push_back(find_cell(table, row, key)->text);
        const double value = number_of(table, row, selection.value), seconds = number_of(table, row, "seconds");
        double least = number_of(table, row, "seconds_min") / seconds;
        double most = number_of(table, row, "seconds_max") / seconds;
        if (selection.is_rate) {
            least = 1 / least;
            most = 1 / most;
            std::swap(least, most);
        }
        chart.bars.push_back({joined(names, ", "), find_cell(table, row, selection.value)->text, value, least * value,
                              most * value, names.back() == "backward"});
    }
    if (!table.rows.empty())
        if (const Cell *ranks = find_cell(table, table.rows.front(), "ranks"))
            chart.title += "; " + ranks->text + " ranks";
    return chart;
}

// Returns the build, the processor and its threads or the GPU, and the number of repeats.
std::vector<std::string> machine_lines(const Report &report) {
    std::vector<std::string> lines;
    for (const Facts &facts : report.facts())
        for (const auto &[name, cell] : facts.facts)
            if (facts.key == "machine") {
                if (name.key == "build_info" || name.key == "processor" || name.key == "device")
                    lines.push_back(cell.text);
                else if (name.key == "threads")
                    lines.back() += ", threads: " + cell.text;
                else if (name.key == "repeats")
                    lines.push_back("bars: medians of " + cell.text + "; lines on them: from the least to the most");
            }
    return lines;
}

} // namespace

std::string draw_bench(const Report &report) {
    constexpr double row = 20, margin = 16, length = 400, letter = 6.8; // pixels
    std::vector<Chart> charts;
    const std::vector<std::string> machine = machine_lines(report);
    double names = 0, height = margin + row * static_cast<double>(machine.size() + 1), width = 0;
    for (const std::string &line : machine)
        width = std::max(width, 2 * margin + letter * static_cast<double>(line.size()));
    for (const Table &table : report.tables())
        for (const Selection &selection : selections())
            if (table.key == selection.table) {
                charts.push_back(chart_of(table, selection));
                height += row * static_cast<double>(charts.back().bars.size() + 2);
                for (const Bar &bar : charts.back().bars)
                    names = std::max(names, letter * static_cast<double>(bar.name.size()));
            }
    Svg svg(std::max(width, names + length + 8 * margin), height, "annulus bench");
    double y = margin;
    for (const std::string &line : machine) {
        svg.text(margin, y + 14, line);
        y += row;
    }
    y += row;
    for (const Chart &chart : charts) {
        double largest = 0;
        for (const Bar &bar : chart.bars)
            largest = std::max(largest, bar.most);
        const double unit = largest > 0 ? length / largest : 0;
        svg.text(margin, y + 14, chart.title);
        for (const Bar &bar : chart.bars) {
            y += row;
            svg.text(margin, y + 14, bar.name);
            const double left = names + 2 * margin, middle = y + row / 2;
            const std::string color = bar.is_backward ? "second" : "mark";
            svg.rectangle(left, y + 3, unit * bar.value, row - 6,
                          "class=\"" + color + "\" fill-opacity=\"0.6\""); // so that the line on the bar is visible
            const std::string least = Svg::number(left + unit * bar.least), most = Svg::number(left + unit * bar.most);
            const std::string top = Svg::number(middle - 3);
            svg.raw("<path class=\"line\" d=\"M" + least + " " + Svg::number(middle) + "H" + most + "M" + least + " " +
                    top + "v6M" + most + " " + top + "v6\"/>");
            svg.text(left + unit * bar.most + 6, y + 14, bar.text);
        }
        y += 2 * row;
    }
    return svg.document();
}

} // namespace annulus::cli
