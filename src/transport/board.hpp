// SPDX-License-Identifier: Apache-2.0
// The ranks of one host exchange data through memory that their processes share. No device takes part, and an exchange
// takes microseconds.
//
// Each rank has a place: a count of its entries, and room for two entries, which it writes in turns. A rank writes an
// entry only after all ranks have written the entry before. By then they have read the entry that it overwrites, so no
// acknowledgement is needed. The memory has no name: nothing remains of a process that dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace annulus {

class Board {
  public:
    // Gathers `bytes` from each rank into `all`, in rank order.
    using Gather = std::function<void(const void *mine, void *all, std::size_t bytes)>;
    // Throws if it is useless to wait any longer for a rank.
    using Check = std::function<void(int rank)>;

    // Collective, by means of another gather. Returns null on every rank if one rank cannot map the memory.
    // `common_bytes` of the memory are for the caller.
    static std::unique_ptr<Board> make(int rank, int ranks, std::size_t common_bytes, const Gather &gather);

    ~Board(); // calls leave()
    Board(const Board &) = delete;
    Board &operator=(const Board &) = delete;

    // Collective. Calls `check` every few milliseconds while it waits. Throws Error(ANNULUS_ERROR_COMM) if a rank has
    // left. After an exception the board cannot be used any more.
    void all_gather(const void *mine, void *all, std::size_t bytes, const Check &check);

    // Tells the other ranks that this rank will write no more entries, and whether something has failed. They stop
    // waiting for it. Any thread may call it; it does not wait.
    void leave(bool has_failed = false) noexcept;
    // True if a rank has left because something failed. Any thread may call it.
    bool has_failed(int rank) const noexcept;

    // Returns the caller's part of the memory that all ranks map. It is zero at first and begins at a page.
    void *common() const noexcept;

  private:
    struct Place;
    struct Memory;

    Board(int rank, int ranks, std::unique_ptr<Memory> memory);
    void gather_piece(const std::byte *mine, std::byte *all, std::size_t bytes, std::size_t stride, const Check &check);
    void await(int rank, std::uint32_t count, const Check &check) const;

    const int rank_, ranks_;
    const std::unique_ptr<Memory> memory_;
    std::uint32_t count_ = 0; // number of entries
};

} // namespace annulus
