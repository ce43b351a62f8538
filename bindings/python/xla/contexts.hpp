// SPDX-License-Identifier: Apache-2.0
// Contexts for custom calls, which XLA makes from any of its threads, several at a time.
#pragma once

#include <annulus/annulus.h>

#include <cstdint>
#include <vector>

namespace annulus::xla {

// What a context is made for.
struct ContextKey {
    annulus_device device;
    std::int32_t index;
    // The config as annulus/jax/_calls.py writes it; empty: the context has no config.
    std::vector<std::int64_t> config;
    double scale; // NaN: 1/sqrt(D)

    bool operator==(const ContextKey &other) const;
};

// Uses a context alone, for one call. Takes an idle context with this key, or makes one. The destructor gives it back
// for later calls, without the caller's stream and workspace.
class ContextUse {
  public:
    explicit ContextUse(ContextKey key);
    ~ContextUse();
    ContextUse(const ContextUse &) = delete;
    ContextUse &operator=(const ContextUse &) = delete;

    // The status of taking or making the context. If it is an error, annulus_last_error() says why.
    annulus_status status() const { return status_; }
    annulus_context *get() const { return context_; }

  private:
    ContextKey key_;
    annulus_context *context_ = nullptr;
    annulus_status status_;
};

} // namespace annulus::xla
