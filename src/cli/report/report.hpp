// SPDX-License-Identifier: Apache-2.0
// Prints a command's results: sections of facts and tables, as text, Markdown or JSON.
#pragma once

#include "cli/report/options.hpp"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace annulus::cli {

// A value, and the text that readers see.
struct Cell {
    std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string> value; // monostate: null
    std::string text;
    bool is_right_aligned = true; // otherwise left-aligned
};

Cell text_cell(const std::string &text);
Cell count_cell(std::int64_t count);                             // 1,048,576
Cell real_cell(double value, int digits, const char *unit = ""); // 3.14
Cell bytes_cell(std::uint64_t bytes);                            // 1.50 MiB
Cell scaled_cell(double value, const char *unit);                // 1.50 TFLOP
Cell seconds_cell(double seconds);                               // 1.50 ms
Cell missing_cell();

struct Column {
    std::string key; // name in JSON
    std::string title;
};

// A list of rows; in JSON an array of objects.
struct Table {
    std::string key;
    std::string title;
    std::vector<Column> columns;
    std::vector<std::vector<Cell>> rows;
};

// A list of named values; in JSON an object.
struct Facts {
    struct Fact {
        Column name;
        Cell cell;
    };
    std::string key;
    std::string title;
    std::vector<Fact> facts;
};

class Report {
  public:
    void add(const Facts &facts);
    void add(const Table &table);
    // Return everything that was added.
    const std::vector<Facts> &facts() const { return facts_; }
    const std::vector<Table> &tables() const { return tables_; }
    // Writes to standard output. `format` is text, markdown or json. As text, a wide table is split into several.
    void print(const std::string &format) const;

  private:
    struct Section {
        std::string key, title;
        std::vector<std::string> names; // JSON names of the columns or the facts
        bool has_head;                  // true for a table, whose first row holds the titles
        std::vector<std::vector<Cell>> rows;
    };
    std::string text(const Section &section) const;
    std::string markdown(const Section &section) const;
    std::string json() const;

    std::vector<Section> sections_;
    std::vector<Facts> facts_;
    std::vector<Table> tables_;
};

void add_format_option(Command &command, std::string &format);

} // namespace annulus::cli
