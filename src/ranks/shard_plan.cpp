// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_plan.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"

namespace annulus {

namespace {

Problem local_problem(Problem problem, const Window &shard) {
    problem.queries = problem.keys = shard;
    problem.key_stride = 1;
    return problem;
}

Problem remote_problem(Problem problem, const Message &message) {
    problem.queries = message.queries;
    problem.keys = message.keys;
    problem.key_stride = message.stride;
    return problem;
}

} // namespace

std::int64_t row_tensor_bytes(const Problem &problem, std::int64_t rows, annulus_dtype dtype) {
    return problem.batch * rows * problem.head_dim * dtype_bytes(dtype);
}

ShardPlan::ShardPlan(const ShardLayout &layout, int shard, Steps &steps)
    : local_(layout.plan(), local_problem(layout.plan().problem(), layout.piece(shard))),
      schedule_(layout, shard, steps) {
    for (const Round &round : schedule_.rounds())
        for (const Message *message : round.receives)
            remote_.try_emplace(message, layout.remote_plan(), remote_problem(layout.plan().problem(), *message));
}

namespace {

// Returns the bytes of all messages that travel between ranks in one direction. `are_gradients`: dK and dV, in the
// dtype of sums; else K and V.
std::uint64_t message_bytes(const ShardPlan &plan, std::vector<const Message *> Round::*messages, bool are_gradients) {
    const Problem &problem = plan.local().problem();
    const annulus_dtype dtype = are_gradients ? sum_dtype(problem.dtype) : problem.dtype;
    const int tensors = message_tensor_count(problem);
    std::int64_t bytes = 0;
    for (const Round &round : plan.schedule().rounds())
        for (const Message *message : round.*messages)
            if (plan.schedule().travels(*message) &&
                __builtin_add_overflow(bytes, tensors * row_tensor_bytes(problem, message->total_rows(), dtype),
                                       &bytes))
                throw Error(ANNULUS_ERROR_ARGUMENT,
                            "the rows that rank %d would exchange with the others are more than 64 bits can count",
                            plan.schedule().owner(plan.schedule().shard()));
    return static_cast<std::uint64_t>(bytes);
}

} // namespace

std::uint64_t ShardPlan::sent_bytes(annulus_pass pass) const {
    return message_bytes(*this, &Round::sends, false) +
           (pass == ANNULUS_PASS_BACKWARD ? message_bytes(*this, &Round::receives, true) : 0);
}

std::uint64_t ShardPlan::received_bytes(annulus_pass pass) const {
    return message_bytes(*this, &Round::receives, false) +
           (pass == ANNULUS_PASS_BACKWARD ? message_bytes(*this, &Round::sends, true) : 0);
}

std::uint64_t ShardPlan::bytes() const {
    return sizeof *this - sizeof schedule_ + schedule_.bytes() + remote_.size() * sizeof *remote_.begin();
}

} // namespace annulus
