// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/machine_facts.hpp"

#include <annulus/annulus.h>

#include <algorithm>
#include <iterator>

namespace annulus::cli {

Facts machine_facts(int repeats, const Memory &memory, const std::vector<Yardstick> &yardsticks) {
    Facts facts{"machine", "Machine", {{{"build_info", "build"}, text_cell(annulus_build_info())}}};
    std::ranges::copy(memory.facts(), std::back_inserter(facts.facts));
    facts.facts.push_back({{"repeats", "repeats"}, count_cell(repeats)});
    for (const auto &[name, description, unit, amount, work, rates] : yardsticks) {
        const std::string key = name + "_" + unit.key;
        facts.facts.insert(
            facts.facts.end(),
            {{{name, name}, text_cell(description)},
             {{key, name + " rate, median"}, scaled_cell(rates.median(), unit.text)},
             {{key + "_min", name + " rate, lowest"}, scaled_cell(rates.min(), unit.text)},
             {{key + "_max", name + " rate, highest"}, scaled_cell(rates.max(), unit.text)},
             {{name + "_measurements", name + " measurements"}, count_cell(static_cast<std::int64_t>(rates.size()))}});
    }
    return facts;
}

} // namespace annulus::cli
