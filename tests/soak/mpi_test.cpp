// SPDX-License-Identifier: Apache-2.0
// Makes, uses and destroys many thousands of communicators over MPI. No process holds more after them than before.
#include "soak/watch.hpp"

#include "support/ranks.hpp"
#include "support/run.hpp"

#include <mpi.h>

#include <gtest/gtest.h>

namespace annulus::test {
namespace {

TEST(SoakOverMpi, Lives) {
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const Problem problem = {.length = 60, .branches = {{.segment = 16}, {.dilation = 3}}, .dtype = ANNULUS_FLOAT32};
    const Problem shard = shard_problem(problem, problem.length / ranks);
    const Call call(shard, random_inputs(shard, 1), host_memory());
    RankOptions options;
    options.run.threads = 1;
    Watch watch;
    watch.over(soak_calls(3000, 10'000), [&](long, long count) {
        for (long i = 0; i < count; ++i) {
            const MPI_Comm world = MPI_COMM_WORLD;
            annulus_comm *made = nullptr;
            check(annulus_comm_create_from_mpi(&made, &world, nullptr));
            const Comm comm(made);
            const Context context = make_rank_context(problem, options, rank, made);
            check(call.forward(context.get()));
            check(call.backward(context.get()));
        }
    });
    watch.expect_flat();
}

} // namespace
} // namespace annulus::test
