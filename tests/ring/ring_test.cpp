// SPDX-License-Identifier: Apache-2.0
// Several ranks, as threads, against one: the reference engine on the whole sequence in float64.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/random_problem.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {

void PrintTo(const NamedProblem &named, std::ostream *out) {
    *out << named.problem;
}

namespace {

constexpr annulus_exchange exchanges[] = {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER};

RankOptions options_of(const std::vector<std::int64_t> &lengths, annulus_exchange exchange) {
    RankOptions options;
    options.lengths = lengths;
    options.exchange = exchange;
    options.run.engine = ANNULUS_ENGINE_CPU;
    options.run.threads = 1;
    return options;
}

void expect_ranks_agree(const Problem &problem, const Inputs &inputs, const std::vector<std::int64_t> &lengths,
                        const Results &exact, const Results &low) {
    for (const annulus_exchange exchange : exchanges) {
        SCOPED_TRACE(testing::Message() << testing::PrintToString(lengths) << " exchange " << exchange);
        expect_agreement(problem, run_ranks(problem, inputs, options_of(lengths, exchange)), exact, low);
    }
}

class Table : public testing::TestWithParam<NamedProblem> {};

TEST_P(Table, RanksAgreeWithOne) {
    Problem problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Results exact = run_exact(problem, inputs);
    const Results low = plain_if_half(problem, inputs);
    for (const int ranks : {1, 2, 3, 4, 8}) {
        expect_ranks_agree(problem, inputs, even_lengths(problem.length, ranks), exact, low);
        if (ranks > 1)
            expect_ranks_agree(problem, inputs, random_lengths(problem.length, ranks, 1), exact, low);
    }
}

// Without query windows, which ranks have no use for.
std::vector<NamedProblem> table(const std::vector<NamedProblem> &problems, const std::vector<annulus_dtype> &dtypes) {
    std::vector<NamedProblem> all = with_dtypes(up_to(quick() ? 1e6 : small_work, problems), dtypes);
    std::erase_if(all, [](const NamedProblem &named) { return named.problem.window.has_value(); });
    return all;
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Rules, Table, testing::ValuesIn(table(rule_combinations(), {ANNULUS_FLOAT32})), name_of);
INSTANTIATE_TEST_SUITE_P(Named, Table, testing::ValuesIn(table(named_problems(), {ANNULUS_FLOAT64, ANNULUS_BFLOAT16})),
                         name_of);

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, RanksAgreeWithOne) {
    const auto seed = static_cast<std::uint64_t>(GetParam());
    Problem problem = random_problem(seed);
    problem.window.reset();
    SCOPED_TRACE(testing::Message() << problem);
    const Inputs inputs = random_inputs(problem, seed);
    const int ranks = 2 + GetParam() % 5;
    expect_ranks_agree(problem, inputs, random_lengths(problem.length, ranks, seed), run_exact(problem, inputs),
                       plain_if_half(problem, inputs));
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range(0, quick() ? 40 : 300));

} // namespace
} // namespace annulus::test
