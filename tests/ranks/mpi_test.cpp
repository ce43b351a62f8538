// SPDX-License-Identifier: Apache-2.0
// Ranks that are MPI processes, against the reference engine on the whole sequence in float64. Every process has all
// inputs, computes its shard, and compares its shard of the result.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/random_problem.hpp"
#include "support/ranks.hpp"

#include <mpi.h>

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace annulus::test {

namespace {

class World {
  public:
    World() {
        const MPI_Comm world = MPI_COMM_WORLD;
        annulus_comm *comm = nullptr;
        check(annulus_comm_create_from_mpi(&comm, &world, nullptr));
        comm_.reset(comm);
        check(annulus_comm_rank(comm, &rank_));
        check(annulus_comm_size(comm, &size_));
    }

    int size() const { return size_; }

    void expect_agreement(const Problem &problem, const std::vector<std::int64_t> &lengths, std::uint64_t seed) const {
        const Inputs inputs = random_inputs(problem, seed);
        const Results exact = run_exact(problem, inputs), low = plain_if_half(problem, inputs);
        const std::int64_t start = std::accumulate(lengths.begin(), lengths.begin() + rank_, std::int64_t{0});
        const std::int64_t length = lengths[static_cast<std::size_t>(rank_)];
        for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
            SCOPED_TRACE(testing::Message() << testing::PrintToString(lengths) << " exchange " << exchange);
            RankOptions options;
            options.lengths = lengths;
            options.set_lengths = exchange == ANNULUS_EXCHANGE_GATHER;
            options.run.exchange = exchange;
            options.run.threads = 1;
            const Results part = run_rank(problem, inputs, options, rank_, comm_.get());
            annulus::test::expect_agreement(shard_problem(problem, length), part,
                                            shard_results(problem, exact, start, length),
                                            shard_results(problem, low, start, length));
        }
    }

  private:
    Comm comm_;
    int rank_ = 0, size_ = 0;
};

const World &world() {
    static const World only;
    return only;
}

class Table : public testing::TestWithParam<NamedProblem> {};

TEST_P(Table, RanksAgreeWithOne) {
    const Problem &problem = GetParam().problem;
    world().expect_agreement(problem, even_lengths(problem.length, world().size()), 1);
    world().expect_agreement(problem, random_lengths(problem.length, world().size(), 2), 2);
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Rules, Table, testing::ValuesIn(with_dtypes(rule_combinations(), {ANNULUS_FLOAT32})), name_of);

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, RanksAgreeWithOne) {
    const auto seed = static_cast<std::uint64_t>(GetParam());
    Problem problem = seed % 3 == 0 ? random_sliding_problem(seed) : random_problem(seed);
    problem.window.reset();
    SCOPED_TRACE(testing::Message() << problem);
    world().expect_agreement(problem, random_lengths(problem.length, world().size(), seed), seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range(1000, 1100));

} // namespace
} // namespace annulus::test
