// SPDX-License-Identifier: Apache-2.0
// What the ranks of one host tell one another through memory that their processes share: no device takes part, and it
// takes microseconds.
//
// Each rank has a place with a count of its entries and room for two of them, which it writes in turns. An entry is
// written once all others have made the one before it, and so are done with reading the one that it replaces: nothing
// is ever acknowledged. A process that dies leaves nothing behind, the memory has no name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace annulus {

class Board {
  public:
    // `bytes` from each rank, in rank order into `all`.
    using Gather = std::function<void(const void *mine, void *all, std::size_t bytes)>;
    // Throws where there is no use in waiting for a rank any longer.
    using Check = std::function<void(int rank)>;

    // Collective, by way of another gather. Null on every rank where one of them cannot reach the others' memory.
    // `common_bytes` of it are for the caller.
    static std::unique_ptr<Board> make(int rank, int ranks, std::size_t common_bytes, const Gather &gather);

    ~Board(); // leaves
    Board(const Board &) = delete;
    Board &operator=(const Board &) = delete;

    // Collective. While it waits it asks `check` every few milliseconds. After an exception the board is of no use any
    // more. Throws Error(ANNULUS_ERROR_COMM) where a rank has left.
    void all_gather(const void *mine, void *all, std::size_t bytes, const Check &check);

    // Tells the others, which no longer wait for this rank, that it will write no more, and whether something has
    // failed. Any thread; waits for nobody.
    void leave(bool has_failed = false) noexcept;
    // Whether a rank has left because something failed. Any thread.
    bool has_failed(int rank) const noexcept;

    // What all ranks have mapped besides: zeros at first, from the beginning of a page.
    void *common() const noexcept;

  private:
    struct Place;
    struct Memory;

    Board(int rank, int ranks, std::unique_ptr<Memory> memory);
    void gather_piece(const std::byte *mine, std::byte *all, std::size_t bytes, std::size_t stride, const Check &check);
    void await(int rank, std::uint32_t count, const Check &check) const;

    const int rank_, ranks_;
    const std::unique_ptr<Memory> memory_;
    std::uint32_t count_ = 0; // of entries
};

} // namespace annulus
