// SPDX-License-Identifier: Apache-2.0
#include "cli/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace annulus::cli {

namespace {

std::string fixed(double value, int digits) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
    return buffer;
}

// Three significant digits or more, with the largest prefix that leaves a number >= 1.
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

// Characters and not bytes of UTF-8.
std::size_t width_of(const std::string &text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(const Cell &cell, std::size_t width) {
    const std::string space(width - width_of(cell.text), ' ');
    return cell.number ? space + cell.text : cell.text + space;
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
    return {nullptr, "-"};
}

void Report::add(const Facts &facts) {
    Section section{facts.title, false, {}};
    nlohmann::ordered_json &object = json_[facts.key];
    for (const Facts::Fact &fact : facts.facts) {
        Cell cell = fact.cell;
        cell.number = false; // one below another of many kinds: flush left
        section.rows.push_back({text_cell(fact.name.title), cell});
        object[fact.name.key] = fact.cell.value;
    }
    sections_.push_back(std::move(section));
}

void Report::add(const Table &table) {
    Section section{table.title, true, {{}}};
    for (std::size_t i = 0; i < table.columns.size(); ++i)
        section.rows[0].push_back({nullptr, table.columns[i].title, !table.rows.empty() && table.rows[0][i].number});
    nlohmann::ordered_json &array = json_[table.key] = nlohmann::ordered_json::array();
    for (const std::vector<Cell> &row : table.rows) {
        section.rows.push_back(row);
        nlohmann::ordered_json object;
        for (std::size_t i = 0; i < row.size(); ++i)
            object[table.columns[i].key] = row[i].value;
        array.push_back(std::move(object));
    }
    tables_.push_back(table);
    sections_.push_back(std::move(section));
}

std::string Report::text(const Section &section) const {
    const std::vector<std::size_t> widths = column_widths(section.rows);
    std::string result = section.title + "\n";
    for (const auto &row : section.rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i)
            line += "  " + padded(row[i], widths[i]);
        result += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
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
            result += "|" + std::string(widths[i] + 1, '-') + (row[i].number ? ":" : "-");
        result += "|\n";
    };
    // Markdown has no table without a head: that of a list of facts is empty.
    std::vector<Cell> head = section.rows[0];
    if (!section.headed)
        for (Cell &cell : head)
            cell.text.clear();
    add_row(head);
    add_rule(head);
    for (std::size_t i = section.headed ? 1 : 0; i < section.rows.size(); ++i)
        add_row(section.rows[i]);
    return result;
}

void Report::print(const std::string &format) const {
    std::string result;
    if (format == "json") {
        result = json_.dump(2) + "\n";
    } else {
        for (const Section &section : sections_)
            result += (result.empty() ? "" : "\n") + (format == "markdown" ? markdown(section) : text(section));
    }
    std::fwrite(result.data(), 1, result.size(), stdout);
}

void add_format_option(CLI::App &command, std::string &format) {
    command.add_option("--format", format, "How to print, text unless given")
        ->check(CLI::IsMember({"text", "markdown", "json"}))
        ->type_name("FORMAT");
}

} // namespace annulus::cli
