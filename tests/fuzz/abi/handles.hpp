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

// Whether a call succeeded. One that failed has left a message of one printable line, and is no defect of annulus.
bool succeeded(annulus_status status);

// A struct that begins with `size`, in memory that is as long as its size says: reading further is found.
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
    std::vector<std::byte> bytes_, before_; // as aligned as what malloc() gives
};

// What an allocator of the caller's does: as many allocations as it has left, and none that is larger than any here.
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

    // Afterwards every context serves as if nothing had been.
    void expect_service();

    annulus_config *config() const { return config_; }
    annulus_context *context() const { return context_; }
    // How many ranks the context's communicator has, 0: it has none.
    int ranks() const { return context_ranks_; }
    // What is set comes back with the next call of change_context().
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
