// SPDX-License-Identifier: Apache-2.0
// What stands behind the context handle.
#pragma once

#include "call/comm.hpp"
#include "call/prepared_calls.hpp"
#include "core/pattern.hpp"
#include "core/plan.hpp"
#include "cpu/thread_count.hpp"
#include "engine/engine.hpp"
#include "ranks/message_copier.hpp"

#include <annulus/comm.h>
#include <annulus/context.h>

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

struct annulus_context {
    annulus_device kind = ANNULUS_DEVICE_CPU;
    pid_t maker = 0; // of a CUDA device: the only process that can use it, which a forked child is not; 0: any can
    mutable std::atomic<pid_t> user = 0; // the process that is in a call with it; 0: none
    std::unique_ptr<annulus::Device> device;
    std::optional<annulus_config> config;
    void *stream = nullptr;
    std::optional<annulus_allocator> allocator;
    void *workspace = nullptr;
    std::size_t workspace_bytes = 0;
    int threads = 0;                      // what the caller set; 0: default_threads
    int default_threads = 0;              // what the environment says; 0: one for each CPU that the thread may run on,
    int cpu_quota = annulus::max_threads; // but no more than this
    annulus_engine last_engine = ANNULUS_ENGINE_AUTO;

    // Under the config, and with ranks under the communicator.
    annulus::PreparedCalls calls;

    // With other ranks; none: it computes alone.
    std::shared_ptr<annulus::CommEnd> comm;
    annulus::Shards set_shards;    // by the caller; without pieces: none
    annulus::Shards agreed_shards; // that the ranks last found; without pieces: none
    std::unique_ptr<annulus::MessageCopier> message_copier;
    std::uint64_t sent_bytes = 0, received_bytes = 0;

    // Throws where no config was set.
    const annulus_config &required_config() const;
    // How many threads its calls may use: 1 where the device is no CPU.
    int thread_limit() const;
    // How its calls are chosen, and what they may use, of whose workspace so many bytes are not the engine's. Throws
    // where no config was set.
    annulus::CallSetting setting(std::size_t own_bytes = 0) const;
    // The plan of a problem under the config, with its calls within the limits.
    annulus::WholeCalls &whole_calls(const annulus::CallProblem &problem, const annulus::Limits &limits);
    // The rank's plan and calls, planned in no more than `most_steps` where they are not there yet; the problem's
    // windows and sequence length are not looked at.
    annulus::RankCalls &rank_calls(annulus::CallProblem problem, const annulus::Shards &shards,
                                   const annulus::Limits &limits, std::int64_t most_steps);

    // For a context with a communicator. Throws where shards were set and this rank's has another number of rows.
    void check_rows(std::int64_t rows) const;
    // All shards as far as they are known before a call where this rank has so many rows: those that were set, else
    // those of the call before. Without pieces: they are not.
    annulus::Shards known_shards(std::int64_t rows) const;
    // Returns the shards of a problem's sequence. The caller's shards come first; they must add up to the sequence
    // length, or it throws. Without them it takes the shards of the call before, if these add up. Else it makes shards
    // as equal as can be.
    annulus::Shards shards_of(std::int64_t sequence_length) const;
};

namespace annulus {

// The lengths of shards as equal as can be, the first ones longer.
std::vector<std::int64_t> even_lengths(std::int64_t sequence_length, std::int32_t ranks);

// The sum of shard lengths. Throws Error(ANNULUS_ERROR_ARGUMENT) where they are no shards.
std::int64_t check_lengths(const std::vector<std::int64_t> &lengths);

// Whether this process can use the context, and no call does.
bool is_idle(const annulus_context &context);

// A call's use of a context. Throws where the handle is NULL, this process cannot use the context, or a call does.
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
