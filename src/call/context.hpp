// SPDX-License-Identifier: Apache-2.0
// What stands behind the context handle, and where the memory of a call comes from.
#pragma once

#include "core/pattern.hpp"
#include "core/plan.hpp"
#include "engine/engine.hpp"
#include "ranks/rank_call.hpp"

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
    // The only process that can use it, 0 for any: on a CUDA device the one that made it, on a CPU the one that is in a
    // call with it. A forked child is another.
    std::atomic<pid_t> process = 0;
    std::unique_ptr<annulus::Device> device;
    std::optional<annulus_config> config;
    void *stream = nullptr;
    std::optional<annulus_allocator> allocator;
    void *workspace = nullptr;
    std::size_t workspace_bytes = 0;
    int threads = 0; // 0: as many as the process may run on
    annulus_engine last_engine = ANNULUS_ENGINE_AUTO;

    // The plan of the last problem, kept for the next call.
    std::optional<annulus::Plan> plan;

    // With other ranks; it is the caller's.
    annulus_comm *comm = nullptr;
    std::vector<std::int64_t> shard_lengths;  // that were set; empty: none
    std::vector<std::int64_t> agreed_lengths; // that the ranks last found; empty: none
    std::unique_ptr<annulus::MessageCopier> row_mover;
    std::optional<annulus::RingPlan> ring_plan; // of the last problem
    std::uint64_t sent_bytes = 0, received_bytes = 0;

    // Throws where no config was set.
    const annulus_config &required_config() const;
    // The plan of a problem under the config.
    const annulus::Plan &plan_for(const annulus::Problem &problem);
    // What its calls may use. Throws where no config was set.
    annulus::Resources resources() const;

    // For a context with a communicator. Throws where shards were set and this rank's has another number of rows.
    void check_rows(std::int64_t rows) const;
    // The lengths of all shards as far as they are known before a call where this rank has so many rows: those that
    // were set, else those of the call before. Empty: they are not.
    std::vector<std::int64_t> known_lengths(std::int64_t rows) const;
    // The rank's plan under the config, for no more than `most_steps` where it is not there yet; the problem's windows
    // and sequence length are not looked at.
    const annulus::RingPlan &ring_plan_for(annulus::Problem problem, const std::vector<std::int64_t> &lengths,
                                           std::int64_t most_steps);

    // What is asked before a call, which knows of no other lengths than those that were set, or equal ones. Throws
    // where the problem's windows are not the rank's shard.
    const annulus::Problem &check_shard(const annulus::Problem &problem) const;
    const annulus::RingPlan &ring_plan_for(const annulus::Problem &problem) {
        return ring_plan_for(problem, lengths_in(problem.sequence_length), annulus::estimate_steps);
    }

  private:
    std::vector<std::int64_t> lengths_in(std::int64_t sequence_length) const;
};

namespace annulus {

// The lengths of shards as equal as can be, the first ones longer.
std::vector<std::int64_t> even_lengths(std::int64_t sequence_length, std::int32_t ranks);

// A call's use of a context. Throws where the handle is NULL or this process cannot use it.
class ContextUse {
  public:
    explicit ContextUse(annulus_context *context);
    ~ContextUse();
    ContextUse(const ContextUse &) = delete;
    ContextUse &operator=(const ContextUse &) = delete;

  private:
    annulus_context &context_;
    pid_t before_;
};

// The sum of shard lengths. Throws Error(ANNULUS_ERROR_ARGUMENT) where they are no shards.
std::int64_t check_lengths(const std::vector<std::int64_t> &lengths);

// The workspace of one call, aligned as the ledger asks for: from the caller's workspace, else its allocator, else the
// device. Given back, in the stream's order, when the call ends; lives inside a DeviceScope.
class CallMemory {
  public:
    CallMemory(const annulus_context &context, std::size_t bytes);
    ~CallMemory();
    CallMemory(const CallMemory &) = delete;
    CallMemory &operator=(const CallMemory &) = delete;

    void *data() const { return data_; }

    // Leaves the memory to whoever still uses it: it is not given back.
    void leave() { data_ = nullptr; }

    // The bytes that the caller's workspace, which need not be aligned, must have.
    static std::size_t announced(std::size_t bytes);
    // What an engine may book so that no more than `limit` is announced; 0, no limit, stays 0.
    static std::uint64_t bookable(std::uint64_t limit);

  private:
    const annulus_context &context_;
    std::size_t bytes_;
    void *data_ = nullptr;
};

} // namespace annulus
