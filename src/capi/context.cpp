// SPDX-License-Identifier: Apache-2.0
// annulus/context.h.
#include "call/context.hpp"

#include "call/comm.hpp"
#include "capi/argument.hpp"
#include "capi/guard.hpp"
#include "capi/problem.hpp"
#include "capi/sized_struct.hpp"
#include "core/workspace.hpp"
#include "engine/engine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

using namespace annulus;

namespace {

constexpr int max_threads = 1024;

constexpr std::size_t alignment = Workspace::alignment;

// The number of devices of a kind that the caller named.
std::int32_t checked_device_count(const annulus_device &device) {
    check_enum("device", device, ANNULUS_DEVICE_CPU, ANNULUS_DEVICE_CUDA);
    return device_count(device);
}

int thread_count(int wanted) {
    if (wanted > 0)
        return wanted;
    cpu_set_t allowed;
    const int count = sched_getaffinity(0, sizeof allowed, &allowed) == 0
                          ? CPU_COUNT(&allowed)
                          : static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(count, 1, max_threads);
}

} // namespace

const annulus_config &annulus_context::required_config() const {
    if (!config)
        throw Error(ANNULUS_ERROR_ARGUMENT, "context has no config; annulus_context_set_config() gives it one");
    return *config;
}

const Plan &annulus_context::plan_for(const Problem &problem) {
    if (!plan || !(plan->problem() == problem))
        plan.emplace(required_config().pattern, problem);
    return *plan;
}

Resources annulus_context::resources() const {
    const Execution &execution = required_config().execution;
    return {thread_count(threads), CallMemory::bookable(execution.workspace_limit), execution.allow_tf32, stream,
            device.get()};
}

void annulus_context::check_rows(std::int64_t rows) const {
    if (shard_lengths.empty())
        return;
    const int rank = comm->transport->rank();
    const std::int64_t length = shard_lengths[static_cast<std::size_t>(rank)];
    if (rows != length)
        throw Error(ANNULUS_ERROR_ARGUMENT, "shape[1] of q is %lld; the shard of rank %d has %lld rows",
                    static_cast<long long>(rows), rank, static_cast<long long>(length));
}

std::vector<std::int64_t> annulus_context::known_lengths(std::int64_t rows) const {
    const std::vector<std::int64_t> &known = shard_lengths.empty() ? agreed_lengths : shard_lengths;
    const auto rank = static_cast<std::size_t>(comm->transport->rank());
    return known.empty() || known[rank] != rows ? std::vector<std::int64_t>() : known;
}

const RingPlan &annulus_context::ring_plan_for(Problem problem, const std::vector<std::int64_t> &lengths,
                                               std::int64_t most_steps) {
    const int rank = comm->transport->rank();
    const std::vector<Window> shards = make_shards(lengths);
    problem.sequence_length = check_lengths(lengths);
    problem.queries = problem.keys = shards[static_cast<std::size_t>(rank)];
    check_element_count(problem);
    if (!ring_plan || !(ring_plan->local().problem() == problem) || ring_plan->schedule().shards() != shards)
        ring_plan.emplace(required_config().pattern, problem, shards, rank, required_config().execution.exchange,
                          most_steps);
    return *ring_plan;
}

std::vector<std::int64_t> annulus_context::lengths_in(std::int64_t sequence_length) const {
    return shard_lengths.empty() ? even_lengths(sequence_length, comm->transport->size()) : shard_lengths;
}

const Problem &annulus_context::check_shard(const Problem &problem) const {
    const std::vector<std::int64_t> lengths = lengths_in(problem.sequence_length);
    if (const std::int64_t sum = check_lengths(lengths); sum != problem.sequence_length)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "sequence_length of problem is %lld; the shards of all ranks have %lld rows",
                    static_cast<long long>(problem.sequence_length), static_cast<long long>(sum));
    const Window shard = make_shards(lengths)[static_cast<std::size_t>(comm->transport->rank())];
    if (problem.queries != shard || problem.keys != shard)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "the windows of problem are not this rank's shard, which starts at %lld and has %lld rows%s",
                    static_cast<long long>(shard.start), static_cast<long long>(shard.length),
                    shard_lengths.empty() ? "; annulus_context_set_shards() sets others" : "");
    return problem;
}

std::vector<std::int64_t> annulus::even_lengths(std::int64_t sequence_length, std::int32_t ranks) {
    std::vector<std::int64_t> lengths;
    for (std::int32_t i = 0; i < ranks; ++i)
        lengths.push_back(sequence_length / ranks + (i < sequence_length % ranks));
    return lengths;
}

namespace {

bool usable_here(const annulus_context &context) {
    const pid_t process = context.process;
    return process == 0 || process == getpid();
}

} // namespace

ContextUse::ContextUse(annulus_context *context) : context_(required(context, "context")), before_(context_.process) {
    if (!usable_here(context_))
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    context_.kind == ANNULUS_DEVICE_CPU
                        ? "context was in a call of process %d when this one was forked; here it can only be destroyed"
                        : "context was made by process %d, which this one was forked from; CUDA does not survive "
                          "fork(), so here it can only be destroyed",
                    static_cast<int>(before_));
    context_.process = getpid();
}

ContextUse::~ContextUse() {
    context_.process = before_;
}

std::int64_t annulus::check_lengths(const std::vector<std::int64_t> &lengths) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const auto length = static_cast<long long>(lengths[i]);
        if (length < 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "lengths[%zu] is %lld; it must be at least 0", i, length);
        if (__builtin_add_overflow(sum, lengths[i], &sum))
            throw Error(ANNULUS_ERROR_ARGUMENT, "lengths[%zu] is %lld; the sum of all does not fit 64 bits", i, length);
    }
    if (sum == 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "all lengths are 0; at least one rank must hold a row");
    return sum;
}

CallMemory::CallMemory(const annulus_context &context, std::size_t bytes) : context_(context), bytes_(bytes) {
    if (bytes == 0)
        return;
    if (context.workspace) {
        data_ = context.workspace;
        std::size_t space = context.workspace_bytes;
        if (!std::align(alignment, bytes, data_, space))
            throw Error(ANNULUS_ERROR_MEMORY, "the workspace has %zu bytes; this call needs %zu",
                        context.workspace_bytes, announced(bytes));
        return;
    }
    if (!context.allocator) {
        data_ = context.device->allocate(bytes, context.stream);
        return;
    }
    const annulus_allocator &allocator = *context.allocator;
    data_ = allocator.allocate(allocator.user, bytes, alignment, context.stream);
    if (!data_)
        throw Error(ANNULUS_ERROR_MEMORY, "the allocator returned NULL for %zu bytes", bytes);
    try {
        if (reinterpret_cast<std::uintptr_t>(data_) % alignment != 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "the allocator returned %p; it must be aligned to %zu bytes", data_,
                        alignment);
        context.device->check_memory("what the allocator returned", data_);
    } catch (...) {
        allocator.release(allocator.user, data_, bytes, context.stream);
        throw;
    }
}

CallMemory::~CallMemory() {
    if (!data_ || context_.workspace)
        return;
    if (context_.allocator)
        context_.allocator->release(context_.allocator->user, data_, bytes_, context_.stream);
    else
        context_.device->release(data_, context_.stream);
}

std::size_t CallMemory::announced(std::size_t bytes) {
    return bytes == 0 ? 0 : bytes + alignment - 1;
}

std::uint64_t CallMemory::bookable(std::uint64_t limit) {
    return limit == 0 ? 0 : std::max<std::uint64_t>(limit, alignment) - (alignment - 1);
}

annulus_status annulus_device_count(annulus_device device, int32_t *count) {
    return guard([&] {
        required(count, "count");
        *count = checked_device_count(device);
    });
}

annulus_status annulus_context_create(annulus_context **context, annulus_device device, int32_t index) {
    return guard([&] {
        required(context, "context");
        // Where there is no device at all, make_device() says why.
        if (const std::int32_t count = checked_device_count(device); count > 0)
            check_between("index", index, 0, count - 1);
        auto made = std::make_unique<annulus_context>();
        made->kind = device;
        made->device = make_device(device, index);
        if (device == ANNULUS_DEVICE_CUDA)
            made->process = getpid();
        *context = made.release();
    });
}

void annulus_context_destroy(annulus_context *context) {
    if (context && usable_here(*context)) // else it stays as the fork left it
        delete context;
}

annulus_status annulus_context_set_config(annulus_context *context, const annulus_config *config) {
    return guard([&] {
        const ContextUse use(context);
        annulus_config copy = required(config, "config");
        if (copy.pattern.branches.empty())
            throw Error(ANNULUS_ERROR_ARGUMENT, "config has no branch; it must have at least one");
        check_engine_device(context->kind, copy.execution.engine);
        context->config = std::move(copy);
        context->plan.reset();
        context->ring_plan.reset();
    });
}

annulus_status annulus_context_set_stream(annulus_context *context, void *stream) {
    return guard([&] {
        const ContextUse use(context);
        if (stream && context->kind == ANNULUS_DEVICE_CPU)
            throw Error(ANNULUS_ERROR_UNSUPPORTED, "stream is %p; it must be NULL on a CPU", stream);
        context->stream = stream;
    });
}

annulus_status annulus_context_set_allocator(annulus_context *context, const annulus_allocator *allocator) {
    return guard([&] {
        const ContextUse use(context);
        if (!allocator) {
            context->allocator.reset();
            return;
        }
        const annulus_allocator copy = read_sized("allocator", allocator, &annulus_allocator::user);
        if (!copy.allocate || !copy.release)
            throw Error(ANNULUS_ERROR_ARGUMENT, "%s of allocator is NULL; it must be a function",
                        copy.allocate ? "release" : "allocate");
        context->allocator = copy;
    });
}

annulus_status annulus_context_set_workspace(annulus_context *context, void *workspace, size_t bytes) {
    return guard([&] {
        const ContextUse use(context);
        if (!workspace && bytes != 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "workspace is NULL and bytes is %zu; it must be 0 then", bytes);
        if (bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(workspace))
            throw Error(ANNULUS_ERROR_ARGUMENT, "bytes is %zu; it reaches beyond the address space", bytes);
        if (workspace) {
            const DeviceScope scope(*context->device);
            context->device->check_memory("workspace", workspace);
        }
        context->workspace = workspace;
        context->workspace_bytes = bytes;
    });
}

annulus_status annulus_context_set_threads(annulus_context *context, int32_t threads) {
    return guard([&] {
        const ContextUse use(context);
        check_between("threads", threads, 0, max_threads);
        context->threads = threads;
    });
}

annulus_status annulus_context_last_engine(const annulus_context *context, annulus_engine *engine) {
    return guard([&] {
        required(engine, "engine");
        *engine = required(context, "context").last_engine;
    });
}

annulus_status annulus_context_set_comm(annulus_context *context, annulus_comm *comm) {
    return guard([&] {
        const ContextUse use(context);
        annulus_context &target = *context;
        std::unique_ptr<MessageCopier> mover;
        if (comm) {
            check_process("comm", *comm);
            comm->transport->check_device(target.kind, target.device->index());
            mover = make_message_copier(target.kind);
        }
        target.comm = comm;
        target.row_mover = std::move(mover);
        target.shard_lengths.clear();
        target.agreed_lengths.clear();
        target.ring_plan.reset();
    });
}

annulus_status annulus_context_set_shards(annulus_context *context, const int64_t *lengths, int32_t count) {
    return guard([&] {
        const ContextUse use(context);
        annulus_context &target = *context;
        if (!target.comm)
            throw Error(ANNULUS_ERROR_ARGUMENT, "context has no communicator; annulus_context_set_comm() gives it one");
        std::vector<std::int64_t> copy;
        if (lengths || count != 0) {
            const int ranks = target.comm->transport->size();
            check_between("count", count, ranks, ranks);
            copy.assign(&required(lengths, "lengths"), lengths + count);
            check_lengths(copy);
        }
        target.shard_lengths = std::move(copy);
    });
}

annulus_status annulus_context_last_traffic(const annulus_context *context, annulus_traffic *traffic) {
    return guard([&] {
        const annulus_context &of = required(context, "context");
        annulus_traffic result = read_sized("traffic", traffic, &annulus_traffic::received_bytes);
        result.sent_bytes = of.sent_bytes;
        result.received_bytes = of.received_bytes;
        write_sized(traffic, result);
    });
}
