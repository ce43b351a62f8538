// SPDX-License-Identifier: Apache-2.0
#include "transport/board.hpp"

#include "core/error.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace annulus {

namespace {

constexpr std::size_t entry_bytes = 4096; // longer data is gathered in pieces
constexpr int spin_count = 4000;          // tries before a rank sleeps: a few ten microseconds
constexpr timespec max_sleep{0, 5'000'000};

using Token = std::array<std::uint64_t, 2>;

class File {
  public:
    explicit File(int descriptor) : descriptor_(descriptor) {}
    ~File() {
        if (descriptor_ >= 0)
            close(descriptor_);
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    int get() const { return descriptor_; }

  private:
    const int descriptor_;
};

} // namespace

struct alignas(64) Board::Place {
    std::atomic<std::uint32_t> count; // number of entries that can be read; other ranks sleep on it (futex)
    std::atomic<std::uint32_t> has_left, has_failed;
    alignas(64) std::byte entries[2][entry_bytes];
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// The memory that all processes map: the caller's bytes, a token, and a place for each rank. No other memory of the
// host has the same token. The memory is zero at first.
struct Board::Memory {
    Memory(void *mapped, std::size_t common_bytes, int ranks)
        : mapped_(static_cast<std::byte *>(mapped)), common_bytes_(common_bytes), ranks_(ranks) {}
    ~Memory() { munmap(mapped_, bytes(common_bytes_, ranks_)); }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    static std::size_t bytes(std::size_t common_bytes, int ranks) {
        return places_at(common_bytes) + sizeof(Place) * (static_cast<std::size_t>(ranks) + 1);
    }
    // Returns null if the file cannot be mapped.
    static std::unique_ptr<Memory> map(const File &file, std::size_t common_bytes, int ranks) {
        const std::size_t all = bytes(common_bytes, ranks);
        struct stat status {};
        if (file.get() < 0 || fstat(file.get(), &status) != 0 || status.st_size != static_cast<off_t>(all))
            return nullptr;
        void *const mapped = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        return mapped == MAP_FAILED ? nullptr : std::make_unique<Memory>(mapped, common_bytes, ranks);
    }

    void *common() const { return mapped_; }
    Token &token() const { return *reinterpret_cast<Token *>(mapped_ + places_at(common_bytes_)); }
    Place &place(int rank) const { return reinterpret_cast<Place *>(mapped_ + places_at(common_bytes_))[rank + 1]; }

  private:
    static std::size_t places_at(std::size_t common_bytes) {
        return (common_bytes + alignof(Place) - 1) / alignof(Place) * alignof(Place);
    }

    std::byte *const mapped_;
    const std::size_t common_bytes_;
    const int ranks_;
};

std::unique_ptr<Board> Board::make(int rank, int ranks, std::size_t common_bytes, const Gather &gather) {
    struct Card {
        pid_t process;
        int descriptor;
        Token token;
    };
    // Rank 0 has a file without a name. The other ranks open it through /proc by its descriptor in that process.
    const File own(rank == 0 ? memfd_create("annulus", MFD_CLOEXEC) : -1);
    Card card{getpid(), own.get(), {}};
    std::unique_ptr<Memory> memory;
    if (rank == 0 && ftruncate(own.get(), static_cast<off_t>(Memory::bytes(common_bytes, ranks))) == 0 &&
        getrandom(&card.token, sizeof card.token, 0) == sizeof card.token) {
        memory = Memory::map(own, common_bytes, ranks);
        if (memory)
            memory->token() = card.token;
    }
    std::vector<Card> cards(static_cast<std::size_t>(ranks));
    gather(&card, cards.data(), sizeof card);
    if (rank != 0 && cards[0].descriptor >= 0) {
        char path[64];
        std::snprintf(path, sizeof path, "/proc/%d/fd/%d", cards[0].process, cards[0].descriptor);
        const File others(open(path, O_RDWR | O_CLOEXEC));
        memory = Memory::map(others, common_bytes, ranks);
        if (memory && memory->token() != cards[0].token)
            memory.reset(); // the path led to another file: rank 0 runs on another host or in another container
    }
    const char has_memory = memory ? 1 : 0;
    std::vector<char> all(static_cast<std::size_t>(ranks));
    gather(&has_memory, all.data(), sizeof has_memory);
    if (std::find(all.begin(), all.end(), 0) != all.end())
        return nullptr;
    return std::unique_ptr<Board>(new Board(rank, ranks, std::move(memory)));
}

Board::Board(int rank, int ranks, std::unique_ptr<Memory> memory)
    : rank_(rank), ranks_(ranks), memory_(std::move(memory)) {}

namespace {

void wake_sleepers(std::atomic<std::uint32_t> &word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace

Board::~Board() {
    leave();
}

void Board::leave(bool has_failed) noexcept {
    Place &own = memory_->place(rank_);
    if (has_failed)
        own.has_failed.store(1, std::memory_order_release);
    own.has_left.store(1, std::memory_order_release);
    wake_sleepers(own.count);
}

bool Board::has_failed(int rank) const noexcept {
    return memory_->place(rank).has_failed.load(std::memory_order_acquire) != 0;
}

void *Board::common() const noexcept {
    return memory_->common();
}

void Board::all_gather(const void *mine, void *all, std::size_t bytes, const Check &check) {
    for (std::size_t from = 0; from < bytes; from += entry_bytes)
        gather_piece(static_cast<const std::byte *>(mine) + from, static_cast<std::byte *>(all) + from,
                     std::min(entry_bytes, bytes - from), bytes, check);
}

// `stride`: distance in bytes between the parts of consecutive ranks in `all`.
void Board::gather_piece(const std::byte *mine, std::byte *all, std::size_t bytes, std::size_t stride,
                         const Check &check) {
    Place &own = memory_->place(rank_);
    const std::uint32_t turn = count_ % 2;
    std::memcpy(own.entries[turn], mine, bytes);
    own.count.store(++count_, std::memory_order_release);
    wake_sleepers(own.count);
    for (int rank = 0; rank < ranks_; ++rank) {
        await(rank, count_, check);
        std::memcpy(all + static_cast<std::size_t>(rank) * stride, memory_->place(rank).entries[turn], bytes);
    }
}

void Board::await(int rank, std::uint32_t count, const Check &check) const {
    Place &place = memory_->place(rank);
    for (int i = 0;; ++i) {
        const std::uint32_t seen = place.count.load(std::memory_order_acquire);
        if (static_cast<std::int32_t>(seen - count) >= 0) // the count may be one ahead, and counts may wrap around
            return;
        if (i < spin_count)
            continue;
        check(rank);
        // A rank that has left may have written its entry before it left.
        if (place.has_left.load(std::memory_order_acquire) != 0 && place.count.load(std::memory_order_acquire) == seen)
            throw Error(ANNULUS_ERROR_COMM, "rank %d has left the communicator", rank);
        syscall(SYS_futex, &place.count, FUTEX_WAIT, seen, &max_sleep, nullptr, 0);
    }
}

} // namespace annulus
