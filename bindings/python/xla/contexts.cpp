// SPDX-License-Identifier: Apache-2.0
#include "contexts.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

namespace annulus::xla {
namespace {

struct Idle {
    ContextKey key;
    annulus_context *context;
};

// The idle contexts, the last used one at the end.
struct Pool {
    // More than a model has configs.
    static constexpr std::size_t max_idle_count = 64;

    // Allocates once: a destructor adds contexts, and must not throw.
    Pool() { idle.reserve(max_idle_count + 1); }

    std::mutex mutex;
    std::vector<Idle> idle;
};

// Is never destroyed: XLA's threads may call until the process ends.
Pool &pool() {
    static Pool *const pool = new Pool;
    return *pool;
}

// Removes the idle context of a key that was used last, and returns it. Returns null if there is none.
annulus_context *take(const ContextKey &key) {
    const std::lock_guard lock(pool().mutex);
    std::vector<Idle> &idle = pool().idle;
    const auto found = std::find_if(idle.rbegin(), idle.rend(), [&](const Idle &one) { return one.key == key; });
    if (found == idle.rend())
        return nullptr;
    annulus_context *const context = found->context;
    idle.erase(std::next(found).base());
    return context;
}

// Adds a context to the idle ones. Returns the context that was used longest ago if there are now too many, or null.
annulus_context *give_back(ContextKey key, annulus_context *context) {
    const std::lock_guard lock(pool().mutex);
    std::vector<Idle> &idle = pool().idle;
    idle.push_back({std::move(key), context});
    if (idle.size() <= Pool::max_idle_count)
        return nullptr;
    annulus_context *const oldest = idle.front().context;
    idle.erase(idle.begin());
    return oldest;
}

struct DestroyConfig {
    void operator()(annulus_config *config) const { annulus_config_destroy(config); }
};

// Reads numbers one after the other.
class Numbers {
  public:
    explicit Numbers(const std::vector<std::int64_t> &numbers) : numbers_(numbers) {}
    bool is_at_end() const { return at_ >= numbers_.size(); }
    // Returns the next number; 0 behind the last one.
    std::int64_t next() { return is_at_end() ? 0 : numbers_[at_++]; }
    std::int32_t next32() { return static_cast<std::int32_t>(next()); }

  private:
    const std::vector<std::int64_t> &numbers_;
    std::size_t at_ = 0;
};

// Gives a context the config of a key. _config_numbers() in annulus/jax/_calls.py writes the numbers.
annulus_status set_config(annulus_context *context, const ContextKey &key) {
    annulus_config *made = nullptr;
    if (const annulus_status status = annulus_config_create(&made))
        return status;
    const std::unique_ptr<annulus_config, DestroyConfig> config(made);
    annulus_status status = ANNULUS_OK;
    const auto note = [&](annulus_status next) { status = status == ANNULUS_OK ? next : status; };
    Numbers numbers(key.config);
    note(annulus_config_set_causal(made, numbers.next32()));
    note(annulus_config_set_key_rule(made, static_cast<annulus_key_rule>(numbers.next32())));
    note(annulus_config_set_padding_rule(made, static_cast<annulus_padding_rule>(numbers.next32())));
    const std::int32_t first_head = numbers.next32();
    note(annulus_config_set_head_shard(made, first_head, numbers.next32()));
    note(annulus_config_set_engine(made, static_cast<annulus_engine>(numbers.next32())));
    note(annulus_config_set_allow_tf32(made, numbers.next32()));
    note(annulus_config_set_workspace_limit(made, static_cast<std::uint64_t>(numbers.next())));
    if (!std::isnan(key.scale))
        note(annulus_config_set_scale(made, key.scale));
    while (status == ANNULUS_OK && !numbers.is_at_end()) {
        annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
        branch.segment_length = numbers.next();
        branch.dilation = numbers.next();
        branch.residue = numbers.next();
        branch.grid_width = numbers.next();
        branch.first_head = numbers.next32();
        branch.head_count = numbers.next32();
        branch.phase_rule = static_cast<annulus_phase_rule>(numbers.next32());
        branch.query_rule = static_cast<annulus_query_rule>(numbers.next32());
        branch.order = static_cast<annulus_order>(numbers.next32());
        branch.kind = static_cast<annulus_branch_kind>(numbers.next32());
        branch.left = numbers.next();
        branch.right = numbers.next();
        branch.first_global = numbers.next();
        branch.global_count = numbers.next();
        branch.global_queries = numbers.next32();
        note(annulus_config_add_branch(made, &branch, nullptr));
    }
    note(annulus_context_set_config(context, made));
    return status;
}

} // namespace

bool ContextKey::operator==(const ContextKey &other) const {
    // NaN equals NaN here.
    return device == other.device && index == other.index && config == other.config &&
           std::memcmp(&scale, &other.scale, sizeof scale) == 0;
}

ContextUse::ContextUse(ContextKey key) : key_(std::move(key)), context_(take(key_)), status_(ANNULUS_OK) {
    if (context_)
        return;
    status_ = annulus_context_create(&context_, key_.device, key_.index);
    if (status_ == ANNULUS_OK && !key_.config.empty())
        status_ = set_config(context_, key_);
}

ContextUse::~ContextUse() {
    if (status_ == ANNULUS_OK && annulus_context_set_stream(context_, nullptr) == ANNULUS_OK &&
        annulus_context_set_workspace(context_, nullptr, 0) == ANNULUS_OK)
        context_ = give_back(std::move(key_), context_);
    annulus_context_destroy(context_);
}

} // namespace annulus::xla
