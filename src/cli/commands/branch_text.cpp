// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/branch_text.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace annulus::cli {

namespace {

template <class Enum> using Name = std::pair<std::string_view, Enum>;

constexpr Name<annulus_phase_rule> phase_names[] = {{"block", ANNULUS_PHASE_BLOCK},
                                                    {"interleave", ANNULUS_PHASE_INTERLEAVE}};
constexpr Name<annulus_query_rule> query_names[] = {
    {"dilated", ANNULUS_QUERY_DILATED}, {"residue", ANNULUS_QUERY_RESIDUE}, {"every", ANNULUS_QUERY_EVERY}};
constexpr std::string_view window_prefix = "window:", global_prefix = "global:";
constexpr Name<annulus_order> order_names[] = {{"linear", ANNULUS_ORDER_LINEAR}, {"hilbert", ANNULUS_ORDER_HILBERT}};

// Which of the global positions attend to every key as queries.
constexpr Name<std::int32_t> global_queries_names[] = {{"none", 0}, {"all", 1}};

class Parser {
  public:
    explicit Parser(const std::string &text) { branch_.text = text; }

    BranchText run() {
        const std::vector<std::string_view> parts = split(branch_.text, ',');
        std::size_t first_property = 1;
        if (parts[0].starts_with(window_prefix)) {
            if (parts.size() < 2)
                fail(parts[0], "window:LEFT,RIGHT or window:LEFT,RIGHT:R");
            window(parts[0].substr(window_prefix.size()), parts[1]);
            first_property = 2;
        } else if (parts[0].starts_with(global_prefix)) {
            const std::string_view count = parts[0].substr(global_prefix.size());
            branch_.branch = ANNULUS_BRANCH_GLOBAL_INIT(0, number(count, "a number of global positions", 1));
        } else {
            segments(parts[0]);
        }
        for (std::size_t i = first_property; i < parts.size(); ++i)
            property(parts[i]);
        return std::move(branch_);
    }

  private:
    [[noreturn]] void fail(std::string_view part, const std::string &expected) const {
        throw bad_input("--branch " + branch_.text + ": '" + std::string(part) + "' is not " + expected);
    }

    void segments(std::string_view text) {
        const std::vector<std::string_view> lengths = split(text, ':');
        if (lengths.size() != 2)
            fail(text, "W:R, a segment length and a dilation, window:LEFT,RIGHT:R or global:COUNT");
        branch_.branch.segment_length = number(lengths[0], "a segment length (0 is the whole sequence)", 0);
        branch_.branch.dilation = number(lengths[1], "a dilation", 1);
    }

    void window(std::string_view left, std::string_view right_and_dilation) {
        const std::vector<std::string_view> parts = split(right_and_dilation, ':');
        if (parts.size() > 2)
            fail(right_and_dilation, "RIGHT or RIGHT:R");
        branch_.branch = ANNULUS_BRANCH_WINDOW_INIT(steps(left), steps(parts[0]),
                                                    parts.size() == 2 ? number(parts[1], "a dilation", 1) : 1);
    }

    std::int64_t steps(std::string_view text) const {
        return text == "all" ? -1 : number(text, "a number of keys beside the query, or all", 0);
    }

    std::int64_t number(std::string_view text, const std::string &what, std::int64_t minimum,
                        std::int64_t maximum = std::numeric_limits<std::int64_t>::max()) const {
        const std::optional<std::int64_t> value = parse_count(text);
        if (!value || *value < minimum || *value > maximum)
            fail(text, what + ", a whole number >= " + std::to_string(minimum));
        return *value;
    }

    template <class Enum, std::size_t count>
    Enum choice(std::string_view text, const Name<Enum> (&names)[count], const char *expected) const {
        for (const auto &[name, value] : names)
            if (name == text)
                return value;
        fail(text, expected);
    }

    void property(std::string_view part) {
        const std::size_t equals = part.find('=');
        if (equals == std::string_view::npos)
            fail(part, "a property=value");
        const std::string_view name = part.substr(0, equals);
        const std::string_view value = part.substr(equals + 1);
        if (std::ranges::count(names_, name))
            throw bad_input("--branch " + branch_.text + ": '" + std::string(name) + "' is given twice");
        names_.push_back(name);
        if (name == "heads")
            heads(value);
        else if (name == "phase")
            phase(value);
        else if (name == "query")
            branch_.branch.query_rule = choice(value, query_names, "a query rule: dilated, residue or every");
        else if (name == "order")
            branch_.branch.order = choice(value, order_names, "an order: linear or hilbert");
        else if (name == "width")
            branch_.branch.grid_width = number(value, "a grid width", 0);
        else if (name == "first")
            branch_.branch.first_global = number(value, "a position", 0);
        else if (name == "queries")
            branch_.branch.global_queries =
                choice(value, global_queries_names, "which queries are global: none or all");
        else
            fail(name, "a property: heads, phase, query, order, width, first or queries");
    }

    void heads(std::string_view text) {
        constexpr std::int64_t max_head = std::numeric_limits<std::int32_t>::max() - 1;
        const std::vector<std::string_view> ends = split(text, '-');
        if (ends.size() > 2)
            fail(text, "a head or a range of heads like 0-7");
        const std::int64_t first = number(ends.front(), "a head", 0, max_head);
        const std::int64_t last = number(ends.back(), "the last head of the range", first, max_head);
        branch_.branch.first_head = static_cast<std::int32_t>(first);
        branch_.branch.head_count = static_cast<std::int32_t>(last - first + 1);
        branch_.names_heads = true;
    }

    void phase(std::string_view text) {
        constexpr std::string_view fixed = "fixed:";
        if (text.starts_with(fixed)) {
            branch_.branch.phase_rule = ANNULUS_PHASE_FIXED;
            branch_.branch.residue = number(text.substr(fixed.size()), "a residue", 0);
        } else {
            branch_.branch.phase_rule = choice(text, phase_names, "a phase rule: block, interleave or fixed:X");
            branch_.branch.residue = 0;
        }
        branch_.names_heads = true;
    }

    BranchText branch_;
    std::vector<std::string_view> names_; // of the properties read up to now
};

} // namespace

BranchText parse_branch(const std::string &text) {
    return Parser(text).run();
}

} // namespace annulus::cli
