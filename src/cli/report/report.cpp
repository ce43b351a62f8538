// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.hpp"

#include "cli/report/text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <numeric>
#include <type_traits>
#include <utility>

namespace annulus::cli {

namespace {

constexpr std::size_t max_columns = 132; // width of a terminal

std::string fixed(double value, int digits) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
    return buffer;
}

// Returns at least three significant digits, with the largest prefix for which the number is >= 1.
std::string scaled(double value, double step, std::initializer_list<const char *> prefixes, const char *unit) {
    auto prefix = prefixes.begin();
    while (std::abs(value) >= step && prefix + 1 != prefixes.end()) {
        value /= step;
        ++prefix;
    }
    const int digits = prefix == prefixes.begin() && value == std::floor(value) ? 0
                       : std::abs(value) < 10                                   ? 2
                       : std::abs(value) < 100                                  ? 1
                                                                                : 0;
    return fixed(value, digits) + " " + *prefix + unit;
}

// Returns the number of characters, not of bytes, in UTF-8 text.
std::size_t width_of(const std::string &text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const Cell &cell, std::size_t width) {
    const std::string space(width - width_of(cell.text), ' ');
    return cell.is_right_aligned ? space + cell.text : cell.text + space;
}

std::vector<std::size_t> column_widths(const std::vector<std::vector<Cell>> &rows) {
    std::vector<std::size_t> widths;
    for (const auto &row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i)
            widths[i] = std::max(widths[i], width_of(row[i].text));
    }
    return widths;
}

// Splits the columns of a table into blocks, so that a terminal has room for each. Each block begins with the columns
// that name the rows, followed by numbers.
std::vector<std::vector<std::size_t>> blocks_of(const std::vector<Cell> &head, const std::vector<std::size_t> &widths) {
    std::vector<std::size_t> names;
    while (names.size() < head.size() && !head[names.size()].is_right_aligned)
        names.push_back(names.size());
    const auto width_of_block = [&](const std::vector<std::size_t> &block) {
        return std::accumulate(block.begin(), block.end(), std::size_t{0},
                               [&](std::size_t sum, std::size_t i) { return sum + 2 + widths[i]; });
    };
    std::vector<std::vector<std::size_t>> blocks{names};
    for (std::size_t i = names.size(); i < head.size(); ++i) {
        std::vector<std::size_t> &block = blocks.back();
        if (head[i].is_right_aligned && block != names && width_of_block(block) + 2 + widths[i] > max_columns) {
            blocks.push_back(names);
            blocks.back().push_back(i);
        } else {
            block.push_back(i);
        }
    }
    return blocks;
}

nlohmann::ordered_json json_of(const Cell &cell) {
    nlohmann::ordered_json result;
    std::visit(
        [&result](const auto &value) {
            if constexpr (!std::is_same_v<decltype(value), const std::monostate &>)
                result = value;
        },
        cell.value);
    return result;
}

} // namespace

Cell text_cell(const std::string &text) {
    return {text, text, false};
}

Cell count_cell(std::int64_t count) {
    std::string text = std::to_string(count);
    for (std::size_t i = text.size(); i > 3 + (count < 0); i -= 3)
        text.insert(i - 3, ",");
    return {count, text};
}

Cell real_cell(double value, int digits, const char *unit) {
    return {value, fixed(value, digits) + unit};
}

Cell bytes_cell(std::uint64_t bytes) {
    return {bytes, scaled(static_cast<double>(bytes), 1024, {"", "Ki", "Mi", "Gi", "Ti", "Pi"}, "B")};
}

Cell scaled_cell(double value, const char *unit) {
    return {value, scaled(value, 1000, {"", "k", "M", "G", "T", "P", "E"}, unit)};
}

Cell seconds_cell(double seconds) {
    const auto [factor, unit] = seconds >= 1      ? std::pair(1.0, "s")
                                : seconds >= 1e-3 ? std::pair(1e3, "ms")
                                                  : std::pair(1e6, "µs");
    return {seconds, scaled(seconds * factor, 1e9, {""}, unit)};
}

Cell missing_cell() {
    return {{}, "-"};
}

void Report::add(const Facts &facts) {
    Section section{facts.key, facts.title, {}, false, {}};
    for (const Facts::Fact &fact : facts.facts) {
        Cell cell = fact.cell;
        cell.is_right_aligned = false; // facts have many kinds, so all are left-aligned
        section.rows.push_back({text_cell(fact.name.title), cell});
        section.names.push_back(fact.name.key);
    }
    facts_.push_back(facts);
    sections_.push_back(std::move(section));
}

void Report::add(const Table &table) {
    Section section{table.key, table.title, {}, true, {{}}};
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
        section.names.push_back(table.columns[i].key);
        section.rows[0].push_back(
            {{}, table.columns[i].title, !table.rows.empty() && table.rows[0][i].is_right_aligned});
    }
    section.rows.insert(section.rows.end(), table.rows.begin(), table.rows.end());
    tables_.push_back(table);
    sections_.push_back(std::move(section));
}

std::string Report::text(const Section &section) const {
    const std::vector<std::size_t> widths = column_widths(section.rows);
    std::string result = joined(lines_of(section.title, max_columns), "\n") + "\n";
    const std::vector<std::vector<std::size_t>> blocks = blocks_of(section.rows[0], widths);
    for (const std::vector<std::size_t> &block : blocks) {
        if (block != blocks.front())
            result += "\n";
        for (const auto &row : section.rows) {
            std::string line;
            for (const std::size_t i : block)
                line += "  " + padded(row[i], widths[i]);
            result += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
        }
    }
    return result;
}

std::string Report::markdown(const Section &section) const {
    const std::vector<std::size_t> widths = column_widths(section.rows);
    std::string result = "### " + section.title + "\n\n";
    const auto add_row = [&](const std::vector<Cell> &row) {
        for (std::size_t i = 0; i < row.size(); ++i)
            result += "| " + padded(row[i], widths[i]) + " ";
        result += "|\n";
    };
    const auto add_rule = [&](const std::vector<Cell> &row) {
        for (std::size_t i = 0; i < row.size(); ++i)
            result += "|" + std::string(widths[i] + 1, '-') + (row[i].is_right_aligned ? ":" : "-");
        result += "|\n";
    };
    // Every Markdown table has a head. The head of a list of facts is empty.
    std::vector<Cell> head = section.rows[0];
    if (!section.has_head)
        for (Cell &cell : head)
            cell.text.clear();
    add_row(head);
    add_rule(head);
    for (std::size_t i = section.has_head ? 1 : 0; i < section.rows.size(); ++i)
        add_row(section.rows[i]);
    return result;
}

std::string Report::json() const {
    nlohmann::ordered_json result = nlohmann::ordered_json::object();
    for (const Section &section : sections_) {
        nlohmann::ordered_json &object = result[section.key];
        if (section.has_head) {
            object = nlohmann::ordered_json::array();
            for (std::size_t i = 1; i < section.rows.size(); ++i) {
                nlohmann::ordered_json row;
                for (std::size_t j = 0; j < section.names.size(); ++j)
                    row[section.names[j]] = json_of(section.rows[i][j]);
                object.push_back(std::move(row));
            }
        } else {
            for (std::size_t i = 0; i < section.names.size(); ++i)
                object[section.names[i]] = json_of(section.rows[i][1]);
        }
    }
    return result.dump(2) + "\n";
}

void Report::print(const std::string &format) const {
    std::string result;
    if (format == "json") {
        result = json();
    } else {
        for (const Section &section : sections_)
            result += (result.empty() ? "" : "\n") + (format == "markdown" ? markdown(section) : text(section));
    }
    std::fwrite(result.data(), 1, result.size(), stdout);
}

void add_format_option(Command &command, std::string &format) {
    command.text("--format", format, "How to print, text unless given")
        .one_of({"text", "markdown", "json"})
        .value("FORMAT");
}

} // namespace annulus::cli
