// SPDX-License-Identifier: Apache-2.0
// A child that a rank over MPI forks between calls, and during one. In the child the communicator cannot be used but
// can be destroyed, and the child computes alone. The ranks' calls continue.
#include "support/ranks.hpp"
#include "support/run.hpp"

#include "faults/child.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace annulus::test {
namespace {

Comm make_comm() {
    const MPI_Comm world = MPI_COMM_WORLD;
    annulus_comm *made = nullptr;
    check(annulus_comm_create_from_mpi(&made, &world, nullptr));
    return Comm(made);
}

std::int32_t asked(annulus_status (*question)(const annulus_comm *, std::int32_t *), const Comm &comm) {
    std::int32_t answer = 0;
    check(question(comm.get(), &answer));
    return answer;
}

class ForkOverMpi : public testing::Test {
  public:
    // Returns what is wrong in a child that is forked now.
    std::string fault_in_child(annulus_context *context) const {
        return in_child([&] {
            const Call call(shard_, random_inputs(shard_, 1), host_memory());
            expect_refused(call.forward(context));
            expect_refused(annulus_comm_abort(comm_.get()));
            annulus_context_destroy(context);
            annulus_comm_destroy(comm_.get());
            return run(shard_, random_inputs(shard_, 1)).out == alone_.out ? "" : "wrong results";
        });
    }

    const Comm comm_ = make_comm();
    const std::int32_t rank_ = asked(&annulus_comm_rank, comm_), ranks_ = asked(&annulus_comm_size, comm_);
    const Problem whole_ = {
        .length = 300, .heads = 2, .dim = 16, .branches = {{}, {.dilation = 3}}, .dtype = ANNULUS_FLOAT32};
    const Problem shard_ = shard_problem(whole_, whole_.length / ranks_);
    const Results alone_ = run(shard_, random_inputs(shard_, 1));

  private:
    static void expect_refused(annulus_status status) {
        if (status != ANNULUS_ERROR_ARGUMENT || std::string(annulus_last_error()).find("forked") == std::string::npos)
            throw std::runtime_error(std::string(annulus_status_name(status)) + ": " + annulus_last_error());
    }
};

TEST_F(ForkOverMpi, LeavesTheRanksAsTheyAre) {
    const Context context = make_rank_context(whole_, {}, rank_, comm_.get());
    struct Midst {
        const ForkOverMpi &test;
        annulus_context *context;
        int children = 0;
        std::string fault;
    } midst = {*this, context.get(), 0, ""};
    // A call asks for its workspace after the ranks have agreed on the call.
    const annulus_allocator allocator = {
        sizeof allocator,
        [](void *user, std::size_t bytes, std::size_t alignment, void *) {
            Midst &own = *static_cast<Midst *>(user);
            ++own.children;
            own.fault += own.test.fault_in_child(own.context);
            return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
        },
        [](void *, void *memory, std::size_t, std::size_t, void *) { std::free(memory); }, &midst};
    Call call(shard_, random_inputs(shard_, 1), host_memory());
    const auto both_passes = [&] {
        call.reset(random_inputs(shard_, 1));
        check(call.forward(context.get()));
        check(call.backward(context.get()));
        return call.results();
    };
    const Results wanted = both_passes();
    EXPECT_EQ(fault_in_child(context.get()), "");
    EXPECT_EQ(both_passes().out, wanted.out);
    check(annulus_context_set_allocator(context.get(), &allocator));
    const Results found = both_passes();
    EXPECT_GE(midst.children, 2);
    EXPECT_EQ(midst.fault, "");
    EXPECT_EQ(found.out, wanted.out);
    EXPECT_EQ(found.d_k, wanted.d_k);
    check(annulus_context_set_allocator(context.get(), nullptr));
    EXPECT_EQ(both_passes().d_q, wanted.d_q);
}

} // namespace
} // namespace annulus::test
