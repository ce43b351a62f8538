// SPDX-License-Identifier: Apache-2.0
// The texts of the program's options: branches, presets, lists and numbers. Each line of the input is one text, which
// every parser reads.
#include "fuzz/input.hpp"

#include "cli/arrays/npy.hpp"
#include "cli/commands/branch_text.hpp"
#include "cli/commands/color_range.hpp"
#include "cli/commands/pattern_options.hpp"
#include "cli/report/failure.hpp"
#include "cli/report/number_option.hpp"
#include "cli/report/text.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

using namespace annulus;
using namespace annulus::cli;

namespace {

constexpr std::int32_t heads = 4;
constexpr int max_lines = 8; // for one input; each line is refused for several reasons, which takes time

// Returns true if `use` succeeded. Otherwise it must have refused the text, with a message and for no other reason.
template <class Use> bool is_accepted(const Use &use) {
    try {
        use();
        return true;
    } catch (const Failure &failure) {
        EXPECT(failure.exit_code() == exit_bad_input && *failure.what(), "exit code %d", failure.exit_code());
        const std::string line = error_line(failure.what());
        EXPECT(line.find('\n') + 1 == line.size(), "more than one line");
        return false;
    }
}

void read_numbers(const std::string &text) {
    const auto number = parse_integer(text);
    if (number)
        EXPECT(parse_integer(std::to_string(*number)) == number, "%s", text.c_str());
    if (const auto count = parse_count(text); count && number)
        EXPECT(count == number, "%s", text.c_str());
    parse_real(text);
    is_accepted([&] { whole_number("--batch", text, -5, 1 << 20); });
    is_accepted([&] { real_number("--scale", text); });
    is_accepted([&] { parse_color_range(text); });
    if (!text.ends_with(".npy"))
        is_accepted([&] { read_integers("--starts", text); });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view input(reinterpret_cast<const char *>(data), size);
    PatternOptions together;
    int lines = 0;
    for (const std::string_view line : split(input, '\n')) {
        if (++lines > max_lines)
            break;
        const std::string text(line);
        read_numbers(text);
        is_accepted([&] { parse_branch(text); });
        // A preset may have 65536 branches, so there is at most one preset.
        const bool is_branch = !text.empty() && text[0] >= '0' && text[0] <= '9';
        if (is_branch && together.branches.size() < 4)
            together.branches.push_back(text);
        else if (!is_branch && together.presets.empty())
            together.presets.push_back(text);
    }
    for (const bool groups : {false, true}) {
        together.head_groups = groups;
        const bool has_labels = is_accepted([&] { together.labels(heads); });
        EXPECT(has_labels == is_accepted([&] { together.config(heads); }), "labels of no config");
    }
    return 0;
}
