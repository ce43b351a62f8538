// SPDX-License-Identifier: Apache-2.0
#include "ranks/shard_plan.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"

#include <algorithm>

namespace annulus {

namespace {

Problem local_problem(Problem problem, const Window &shard) {
    problem.queries = problem.keys = shard;
    problem.key_stride = 1;
    return problem;
}

Problem remote_problem(Problem problem, const Window &queries, const Window &keys, std::int64_t stride) {
    problem.queries = queries;
    problem.keys = keys;
    problem.key_stride = stride;
    return problem;
}

// The most bytes of K and V of a full message that is copied into slots with other messages, rather than received
// there. A GPU copies this much in a small part of the time of the launches that it saves.
constexpr std::int64_t max_copied_bytes = std::int64_t{16} << 20;

// Returns the bytes of K and V of this number of rows in each batch entry.
std::int64_t key_bytes(const Problem &problem, std::int64_t rows) {
    return message_tensor_count(problem) * row_tensor_bytes(problem, rows, problem.dtype);
}

// Consecutive messages, in the order of their keys, whose rows can lie in one set of slots. No row of another message
// lies between them.
class Group {
  public:
    Group(const Problem &problem, const Message &message)
        : problem_(problem), messages_{&message}, keys_(message.keys), slots_(message.slots()),
          firsts_(message.rows.size(), -1) {
        note_firsts(message);
    }

    const std::vector<const Message *> &messages() const { return messages_; }
    const Window &keys() const { return keys_; }
    std::int64_t stride() const { return messages_.front()->stride; }

    // Adds a message, and returns true, if all of this holds:
    //
    // - Each row of a head then still has a slot of its own.
    // - The group has at most one empty slot between its messages.
    // - The full messages that are copied because of that have at most `room` bytes, which are taken from `room`.
    bool add(const Message &message, std::int64_t &room) {
        const Message &first = *messages_.front();
        const bool is_before = first.keys.start < message.queries.start;
        const Window keys{keys_.start, message.keys.end() - keys_.start};
        const std::int64_t slots = slots_ + message.slots();
        const std::int64_t copied = full_bytes(message) + (messages_.size() == 1 ? full_bytes(first) : 0);
        if (message.stride != first.stride || is_before != (message.keys.start < message.queries.start) ||
            divide_up(keys.length, message.stride) > slots + 1 || copied > room ||
            std::max(full_bytes(first), full_bytes(message)) > max_copied_bytes || !has_slots_for(message))
            return false;
        room -= copied;
        messages_.push_back(&message);
        keys_ = keys;
        slots_ = slots;
        note_firsts(message);
        return true;
    }

  private:
    // Returns the bytes of K and V of a full message; 0 for any other message, which is copied in any case.
    std::int64_t full_bytes(const Message &message) const {
        return message.is_full() ? key_bytes(problem_, message.total_rows()) : 0;
    }

    // The stride must divide the distances between the rows of a head.
    bool has_slots_for(const Message &message) const {
        if (message.stride == 1)
            return true;
        if (!message.is_regular() || !messages_.front()->is_regular())
            return false;
        for (std::size_t head = 0; head < firsts_.size(); ++head)
            if (message.rows[head] > 0 && firsts_[head] >= 0 &&
                (message.firsts[head] - firsts_[head]) % message.stride != 0)
                return false;
        return true;
    }

    void note_firsts(const Message &message) {
        for (std::size_t head = 0; head < firsts_.size() && message.is_regular(); ++head)
            if (message.rows[head] > 0)
                firsts_[head] = message.firsts[head];
    }

    const Problem &problem_;
    std::vector<const Message *> messages_;
    Window keys_;
    std::int64_t slots_;
    std::vector<std::int64_t> firsts_; // of each kv head: a row, or -1 if it has none or is not regular
};

// Returns the messages that a shard receives in a round, in groups. A full message in a group takes memory twice. So
// the full messages in groups have at most the bytes of the shard's own K and V, or max_copied_bytes if that is more.
std::vector<Group> group(const Problem &problem, const Window &shard, std::vector<const Message *> messages) {
    std::ranges::sort(messages, {}, [](const Message *message) { return message->keys.start; });
    std::int64_t room = std::max(key_bytes(problem, problem.kv_heads * shard.length), max_copied_bytes);
    std::vector<Group> groups;
    for (const Message *const message : messages)
        if (groups.empty() || !groups.back().add(*message, room))
            groups.emplace_back(problem, *message);
    return groups;
}

} // namespace

std::int64_t row_tensor_bytes(const Problem &problem, std::int64_t rows, annulus_dtype dtype) {
    return problem.batch * rows * problem.head_dim * dtype_bytes(dtype);
}

ShardPlan::ShardPlan(const ShardLayout &layout, int shard, Steps &steps)
    : local_(layout.plan(), local_problem(layout.plan().problem(), layout.piece(shard))),
      schedule_(layout, shard, steps) {
    const Problem &problem = layout.plan().problem();
    for (const Round &round : schedule_.rounds()) {
        std::vector<ReceivedKeys> &received = received_.emplace_back();
        for (const Group &keys : group(problem, layout.piece(shard), round.receives))
            received.push_back(
                {keys.messages(), keys.keys(), keys.stride(),
                 Plan(layout.remote_plan(), remote_problem(problem, layout.piece(shard), keys.keys(), keys.stride()))});
    }
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

bool ShardPlan::has_partial_results(annulus_pass pass) const {
    if (pass != ANNULUS_PASS_FORWARD)
        return communicates(); // gradients of keys that were sent return
    return std::ranges::any_of(received_, [](const std::vector<ReceivedKeys> &keys) { return !keys.empty(); });
}

std::uint64_t ShardPlan::sent_bytes(annulus_pass pass) const {
    return message_bytes(*this, &Round::sends, false) +
           (pass == ANNULUS_PASS_BACKWARD ? message_bytes(*this, &Round::receives, true) : 0);
}

std::uint64_t ShardPlan::received_bytes(annulus_pass pass) const {
    return message_bytes(*this, &Round::receives, false) +
           (pass == ANNULUS_PASS_BACKWARD ? message_bytes(*this, &Round::sends, true) : 0);
}

std::uint64_t ShardPlan::bytes() const {
    std::uint64_t sum = sizeof *this - sizeof schedule_ + schedule_.bytes();
    for (const std::vector<ReceivedKeys> &received : received_)
        for (const ReceivedKeys &keys : received)
            sum += sizeof keys + keys.messages.capacity() * sizeof(const Message *);
    return sum;
}

} // namespace annulus
