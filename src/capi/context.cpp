// SPDX-License-Identifier: Apache-2.0
// annulus/context.h.
#include "call/context.hpp"

#include "call/backends.hpp"
#include "capi/guard.hpp"
#include "capi/shards.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

using namespace annulus;

namespace {

// Returns the number of devices of a kind that the caller named.
std::int32_t checked_device_count(annulus_device device) {
    check_enum("device", device);
    return device_count(device);
}

} // namespace

annulus_status annulus_device_count(annulus_device device, int32_t *count) {
    return guard([&] {
        required(count, "count");
        *count = checked_device_count(device);
    });
}

annulus_status annulus_context_create(annulus_context **context, annulus_device device, int32_t index) {
    return guard([&] {
        required(context, "context");
        // If there is no device at all, the backend says why.
        if (const std::int32_t count = checked_device_count(device); count > 0)
            check_between("index", index, 0, count - 1);
        auto made = std::make_unique<annulus_context>();
        made->backend = &find_backend(device);
        made->device = made->backend->make_device(index);
        if (device == ANNULUS_DEVICE_CUDA) {
            made->maker = getpid();
        } else {
            made->default_threads = environment_threads();
            made->cpu_quota = cpu_quota();
        }
        *context = made.release();
    });
}

void annulus_context_destroy(annulus_context *context) {
    const CancellationOff cancellation_off;
    if (context && is_idle(*context)) // else a call is in it, or a forked child cannot end it
        delete context;
}

annulus_status annulus_context_set_config(annulus_context *context, const annulus_config *config) {
    return guard([&] {
        const ContextUse use(context);
        annulus_config copy = required(config, "config");
        if (copy.pattern.branches.empty())
            throw Error(ANNULUS_ERROR_ARGUMENT, "config has no branch; it must have at least one");
        if (copy.execution.engine != ANNULUS_ENGINE_AUTO)
            check_has_engine(*context->backend, copy.execution.engine);
        context->config = std::move(copy);
        context->executables.clear();
    });
}

annulus_status annulus_context_copy_config(annulus_config **config, const annulus_context *context) {
    return guard([&] {
        const ContextUse use(context);
        required(config, "config");
        *config = new annulus_config(context->required_config());
    });
}

annulus_status annulus_context_set_stream(annulus_context *context, void *stream) {
    return guard([&] {
        const ContextUse use(context);
        if (stream && context->backend->device == ANNULUS_DEVICE_CPU)
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

annulus_status annulus_context_get_threads(const annulus_context *context, int32_t *threads) {
    return guard([&] {
        const ContextUse use(context);
        required(threads, "threads");
        *threads = context->thread_limit();
    });
}

annulus_status annulus_context_last_engine(const annulus_context *context, annulus_engine *engine) {
    return guard([&] {
        const ContextUse use(context);
        required(engine, "engine");
        *engine = context->last_engine;
    });
}

annulus_status annulus_context_set_comm(annulus_context *context, annulus_comm *comm) {
    return guard([&] {
        const ContextUse use(context);
        annulus_context &target = *context;
        std::shared_ptr<CommEnd> end;
        std::unique_ptr<MessageCopier> copier;
        if (comm) {
            end = comm->end;
            end->check_process("comm");
            end->transport().check_device(target.backend->device, target.device->index());
            copier = target.backend->make_message_copier();
            DeviceStreams *const streams = target.device->streams();
            if (streams && end->transport().copies_between_devices())
                streams->admit_peers();
        }
        target.comm = std::move(end);
        target.message_copier = std::move(copier);
        target.shards = {};
        target.executables.distributed.clear();
    });
}

annulus_status annulus_context_set_shards(annulus_context *context, const annulus_shards *shards) {
    return guard([&] {
        const ContextUse use(context);
        if (!context->comm)
            throw Error(ANNULUS_ERROR_ARGUMENT, "context has no communicator; annulus_context_set_comm() gives it one");
        Shards set;
        if (shards) {
            annulus_shards given = read_shards(shards);
            const std::int32_t ranks = context->comm->size();
            if (given.ranks != 0 && given.ranks != ranks)
                throw Error(ANNULUS_ERROR_ARGUMENT, "ranks of shards is %d; it must be 0 or the communicator's, %d",
                            given.ranks, ranks);
            given.ranks = ranks;
            set = checked_shards(given);
        }
        context->shards.set(std::move(set));
    });
}

annulus_status annulus_context_last_traffic(const annulus_context *context, annulus_traffic *traffic) {
    return guard([&] {
        const ContextUse use(context);
        annulus_traffic result = read_sized("traffic", traffic, &annulus_traffic::received_bytes);
        result.sent_bytes = context->sent_bytes;
        result.received_bytes = context->received_bytes;
        write_sized(traffic, result);
    });
}
