// SPDX-License-Identifier: Apache-2.0
// The context behind the C API's handle.
#pragma once

#include "call/comm.hpp"
#include "call/executable_cache.hpp"
#include "call/known_shards.hpp"
#include "core/pattern.hpp"
#include "cpu/thread_count.hpp"
#include "engine/backend.hpp"
#include "ranks/message_copier.hpp"

#include <annulus/config.h>
#include <annulus/context.h>

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

struct annulus_context {
    pid_t maker = 0; // the only process that can use a CUDA context, which a forked child cannot; 0: any process can
    mutable std::atomic<pid_t> user = 0; // the process that is in a call with it; 0: none
    const annulus::Backend *backend = nullptr;
    std::unique_ptr<annulus::Device> device;
    std::optional<annulus_config> config;
    void *stream = nullptr;
    std::optional<annulus_allocator> allocator;
    void *workspace = nullptr; // the caller's
    std::size_t workspace_bytes = 0;
    int threads = 0;                      // the caller's; 0: default_threads
    int default_threads = 0;              // from the environment; 0: one for each CPU that the calling thread may use,
    int cpu_quota = annulus::max_threads; // but at most cpu_quota
    annulus_engine last_engine = ANNULUS_ENGINE_AUTO;

    // A new config empties it. A new communicator removes the executables over several ranks.
    annulus::ExecutableCache executables;

    // Null if the context computes on one rank. The members below are used with a communicator only.
    std::shared_ptr<annulus::CommEnd> comm;
    std::unique_ptr<annulus::MessageCopier> message_copier;
    annulus::KnownShards shards;
    std::uint64_t sent_bytes = 0, received_bytes = 0; // in the last call

    // Throws if no config was set.
    const annulus_config &required_config() const;
    // Returns how many threads a call may use; 1 if the device is no CPU.
    int thread_limit() const;
    // Returns what executables are selected by. Throws if no config was set.
    annulus::ExecutionSetting setting() const;
    // Returns the plan of a problem under the config, with its executables.
    annulus::LocalPlanned &plan_alone(const annulus::CallProblem &problem, const annulus::Limits &limits);
    // Returns the rank's plan, with its executables. A new plan may take `max_steps`. The windows and the sequence
    // length of `problem` are ignored.
    annulus::RankPlanned &plan_rank(annulus::CallProblem problem, const annulus::Shards &of_ranks,
                                    const annulus::Limits &limits, std::int64_t max_steps);
};

namespace annulus {

// Returns true if this process can use the context and no call does.
bool is_idle(const annulus_context &context);

// Keeps a context in use. Throws if the handle is NULL, this process cannot use the context, or another call does.
class ContextUse {
  public:
    explicit ContextUse(const annulus_context *context);
    ~ContextUse();
    ContextUse(const ContextUse &) = delete;
    ContextUse &operator=(const ContextUse &) = delete;

  private:
    const annulus_context &context_;
};

} // namespace annulus
