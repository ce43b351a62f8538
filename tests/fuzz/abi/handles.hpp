// SPDX-License-Identifier: Apache-2.0
// The handles of one input, and the calls on them that compute nothing.
#pragma once

#include "fuzz/input.hpp"

#include <annulus/annulus.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace annulus::fuzz {

// Returns true if a call succeeded. A failed call must have left a message of one printable line, and its failure must
// not be a defect of annulus.
bool succeeded(annulus_status status);

// A struct that begins with `size`, in memory of exactly that size, so that reading beyond it is found.
template <class Struct> class Sized {
  public:
    Sized(Input &input, Struct value) {
        const bool is_odd = input.is_wild();
        if (is_odd)
            value.size = static_cast<std::size_t>(input.once_in(3) ? input.any_number() : input.below(5000));
        const std::size_t held = std::clamp<std::size_t>(value.size, sizeof value.size, 8192);
        bytes_.resize(held);
        bytes_.shrink_to_fit();
        std::memcpy(bytes_.data(), &value, std::min(held, sizeof value));
        if (is_odd && held > sizeof value && input.once_in(2))
            bytes_.back() = std::byte{1};
        before_ = bytes_;
    }
    Struct *get() { return reinterpret_cast<Struct *>(bytes_.data()); }
    bool is_untouched() const { return bytes_ == before_; }

  private:
    std::vector<std::byte> bytes_, before_; // aligned like memory of malloc()
};

// The state of the caller's allocator. It makes allocations_left allocations, and none above 64 MiB, more than a call
// needs here.
struct Memory {
    int allocations_left = 0;
    int held = 0;
    static void *allocate(void *user, std::size_t bytes, std::size_t alignment, void *stream);
    static void release(void *user, void *memory, std::size_t bytes, std::size_t alignment, void *stream);
};

class Handles {
  public:
    explicit Handles(Input &input);
    ~Handles();
    Handles(const Handles &) = delete;
    Handles &operator=(const Handles &) = delete;

    void change_config();
    void change_context();
    void change_comm();

    // Checks that every context works afterwards as if nothing had happened.
    void expect_service();

    annulus_config *config() const { return config_; }
    annulus_context *context() const { return context_; }
    // Returns the number of ranks of the context's communicator, 0 if it has none.
    int ranks() const { return context_ranks_; }
    // lend_workspace() sets a workspace and refuse_memory() an allocator that fails. The next call of change_context()
    // may change both again.
    void lend_workspace(void *workspace, std::size_t bytes);
    void refuse_memory();

  private:
    void make_comm(std::int32_t ranks);
    void drop_comm();

    Input &input_;
    annulus_config *config_ = nullptr;
    annulus_context *context_ = nullptr;
    std::vector<annulus_comm *> comms_;
    int context_ranks_ = 0;
    Memory memory_;
    std::vector<std::byte> workspace_;
};

} // namespace annulus::fuzz
