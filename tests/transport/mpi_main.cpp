// SPDX-License-Identifier: Apache-2.0
// Runs the tests of a program in every process that mpirun started. Each test is for all ranks together.
#include <mpi.h>

#include <gtest/gtest.h>

#include <cstdio>

namespace {

int rank_of_world() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

// Copies the failures of other ranks to the first rank's results. Their text goes to the standard error stream.
class Teller : public testing::EmptyTestEventListener {
    void OnTestPartResult(const testing::TestPartResult &result) override {
        if (result.failed())
            std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_of_world(), result.file_name(), result.line_number(),
                         result.message());
    }
};

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    const bool is_first = rank_of_world() == 0;
    int no_arguments = 1;
    testing::InitGoogleTest(is_first ? &argc : &no_arguments, argv);
    if (!is_first) {
        testing::TestEventListeners &listeners = testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new Teller);
    }
    int failed = RUN_ALL_TESTS();
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return failed;
}
