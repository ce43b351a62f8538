// SPDX-License-Identifier: Apache-2.0
// The board of ranks on one host: threads and processes; ranks that leave, die or never come; memory that one of them
// cannot map.
#include "core/error.hpp"
#include "transport/board.hpp"
#include "transport/deadline.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace annulus::test {
namespace {

// A slow, simple gather of ranks that share memory, by which a board is made.
struct Table {
    std::atomic<int> arrived[8]; // number of ranks, by gather
    std::byte parts[8][8][64];   // [gather][rank]
};

class SharedTable {
  public:
    SharedTable()
        : table_(static_cast<Table *>(
              mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
    ~SharedTable() { munmap(table_, sizeof(Table)); }

    Board::Gather gather_of(int rank, int ranks) const {
        return [this, rank, ranks, next = 0](const void *mine, void *all, std::size_t bytes) mutable {
            const int i = next++;
            std::memcpy(table_->parts[i][rank], mine, bytes);
            ++table_->arrived[i];
            while (table_->arrived[i] < ranks)
                std::this_thread::yield();
            for (int other = 0; other < ranks; ++other)
                std::memcpy(static_cast<std::byte *>(all) + static_cast<std::size_t>(other) * bytes,
                            table_->parts[i][other], bytes);
        };
    }

  private:
    Table *const table_;
};

Board::Check within(Transport::Seconds seconds) {
    return [deadline = Deadline(seconds)](int rank) {
        if (deadline.passed())
            throw Error(ANNULUS_ERROR_COMM, "rank %d did not come", rank);
    };
}

// Returns what a rank gives in a gather: bytes that identify rank and gather.
std::vector<std::uint8_t> words_of(int rank, int gather, std::size_t bytes) {
    std::minstd_rand random(static_cast<unsigned>(1 + rank + 100 * gather));
    std::vector<std::uint8_t> words(bytes);
    for (std::uint8_t &word : words)
        word = static_cast<std::uint8_t>(random());
    return words;
}

// Returns true if many gathers of all sizes give what all ranks gave. Some ranks pause now and then.
bool gathers_are_right(Board &board, int rank, int ranks, int gathers) {
    std::minstd_rand sizes(7);
    for (int i = 0; i < gathers; ++i) {
        const std::size_t bytes = i % 50 == 0 ? sizes() % 20000 : sizes() % 300;
        if (i % 64 == rank)
            std::this_thread::sleep_for(std::chrono::microseconds(300));
        const std::vector<std::uint8_t> mine = words_of(rank, i, bytes);
        std::vector<std::uint8_t> all(bytes * static_cast<std::size_t>(ranks));
        board.all_gather(mine.data(), all.data(), bytes, within(Transport::Seconds(60)));
        for (int other = 0; other < ranks; ++other) {
            const std::vector<std::uint8_t> wanted = words_of(other, i, bytes);
            if (!std::equal(wanted.begin(), wanted.end(), all.begin() + static_cast<std::ptrdiff_t>(bytes) * other))
                return false;
        }
    }
    return true;
}

// Runs `work` in a process for each rank; rank 0 is this process. Returns the wait statuses of the other ranks.
std::vector<int> in_processes(int ranks, const std::function<int(int rank)> &work) {
    std::vector<pid_t> children;
    for (int rank = 1; rank < ranks; ++rank) {
        const pid_t child = fork();
        if (child == 0)
            _exit(work(rank));
        children.push_back(child);
    }
    std::vector<int> statuses{work(0)};
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        statuses.push_back(status);
    }
    return statuses;
}

TEST(Board, GathersAmongThreads) {
    for (const int ranks : {1, 2, 5}) {
        const SharedTable table;
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; ++rank)
            threads.emplace_back([&, rank] {
                const std::unique_ptr<Board> board = Board::make(rank, ranks, 4096, table.gather_of(rank, ranks));
                ASSERT_TRUE(board);
                EXPECT_TRUE(gathers_are_right(*board, rank, ranks, 3000));
            });
        for (std::thread &thread : threads)
            thread.join();
    }
}

TEST(Board, GathersAmongProcesses) {
    constexpr int ranks = 4;
    const SharedTable table;
    const std::vector<int> statuses = in_processes(ranks, [&](int rank) {
        const std::unique_ptr<Board> board = Board::make(rank, ranks, 4096, table.gather_of(rank, ranks));
        return board && gathers_are_right(*board, rank, ranks, 3000) ? 0 : 1;
    });
    EXPECT_EQ(statuses, std::vector<int>(ranks, 0));
}

// The bytes are zero at first, and later hold what each process has written in its part. Their number is a prime.
TEST(Board, HasBytesInCommon) {
    constexpr int ranks = 3;
    constexpr std::size_t bytes = 4999;
    const SharedTable table;
    const std::vector<int> statuses = in_processes(ranks, [&](int rank) {
        const std::unique_ptr<Board> board = Board::make(rank, ranks, bytes, table.gather_of(rank, ranks));
        if (!board)
            return 1;
        auto *const common = static_cast<unsigned char *>(board->common());
        const auto meet = [&] { return gathers_are_right(*board, rank, ranks, 2); };
        const bool are_zeros = std::all_of(common, common + bytes, [](unsigned char byte) { return byte == 0; });
        bool are_right = are_zeros && meet();
        for (std::size_t i = static_cast<std::size_t>(rank); i < bytes; i += ranks)
            common[i] = static_cast<unsigned char>(1 + rank);
        are_right &= meet();
        for (std::size_t i = 0; i < bytes; ++i)
            are_right &= common[i] == 1 + i % ranks;
        return are_right ? 0 : 1;
    });
    EXPECT_EQ(statuses, std::vector<int>(ranks, 0));
}

// Returns 0 for the wanted error, 1 for another error or none.
int expect_failure(Board &board, const char *words) {
    const std::uint64_t mine = 1;
    std::uint64_t all[3];
    try {
        for (int i = 0; i < 1000; ++i)
            board.all_gather(&mine, all, sizeof mine, within(Transport::Seconds(0.3)));
    } catch (const Error &error) {
        return error.status() == ANNULUS_ERROR_COMM && std::string(error.what()).find(words) != std::string::npos ? 0
                                                                                                                  : 1;
    }
    return 1;
}

TEST(Board, ARankThatIsKilledIsMissed) {
    constexpr int ranks = 3;
    const SharedTable table;
    const std::vector<int> statuses = in_processes(ranks, [&](int rank) {
        const std::unique_ptr<Board> board = Board::make(rank, ranks, 4096, table.gather_of(rank, ranks));
        if (rank == 2) {
            const std::uint64_t mine = 1;
            std::uint64_t all[ranks];
            for (int i = 0; i < 100; ++i)
                board->all_gather(&mine, all, sizeof mine, within(Transport::Seconds(60)));
            raise(SIGKILL);
        }
        return expect_failure(*board, "rank 2 did not come");
    });
    EXPECT_EQ(statuses[0], 0);
    EXPECT_EQ(statuses[1], 0);
    EXPECT_TRUE(WIFSIGNALED(statuses[2]));
}

TEST(Board, ARankThatLeavesIsNamedAtOnce) {
    constexpr int ranks = 3;
    const SharedTable table;
    const std::vector<int> statuses = in_processes(ranks, [&](int rank) {
        std::unique_ptr<Board> board = Board::make(rank, ranks, 4096, table.gather_of(rank, ranks));
        if (rank != 1)
            return expect_failure(*board, "rank 1 has left");
        const std::uint64_t mine = 1;
        std::uint64_t all[ranks];
        for (int i = 0; i < 10; ++i)
            board->all_gather(&mine, all, sizeof mine, within(Transport::Seconds(60)));
        return 0;
    });
    EXPECT_EQ(statuses, std::vector<int>(ranks, 0));
}

// Rank 1 writes its entry and leaves after rank 0 has read the count, and before rank 0 reads whether rank 1 has left.
TEST(Board, ARankThatLeavesAfterItsPartIsHeard) {
    constexpr int ranks = 2;
    const SharedTable table;
    std::unique_ptr<Board> boards[ranks];
    std::thread other([&] { boards[1] = Board::make(1, ranks, 0, table.gather_of(1, ranks)); });
    boards[0] = Board::make(0, ranks, 0, table.gather_of(0, ranks));
    other.join();
    ASSERT_TRUE(boards[0] && boards[1]);
    const auto speak_and_leave = [&](int) {
        if (!boards[1])
            return;
        const int word = 11;
        int heard[ranks] = {};
        boards[1]->all_gather(&word, heard, sizeof word, within(Transport::Seconds(60)));
        EXPECT_EQ(heard[0], 10);
        boards[1].reset();
    };
    const int word = 10;
    int heard[ranks] = {};
    boards[0]->all_gather(&word, heard, sizeof word, speak_and_leave);
    EXPECT_EQ(heard[0], 10);
    EXPECT_EQ(heard[1], 11);
    EXPECT_EQ(expect_failure(*boards[0], "rank 1 has left"), 0);
}

// If one rank cannot map the memory, as on another host, no rank has a board.
TEST(Board, NobodyHasOneWhereOneRankCannotReachIt) {
    constexpr int ranks = 3;
    const SharedTable table;
    const std::vector<int> statuses = in_processes(ranks, [&](int rank) {
        Board::Gather gather = table.gather_of(rank, ranks);
        // The first card of all carries another token than rank 0's memory.
        const auto misled = [&](const void *mine, void *all, std::size_t bytes) {
            gather(mine, all, bytes);
            if (rank == 2 && bytes > 1)
                static_cast<std::byte *>(all)[bytes - 1] ^= std::byte{1};
        };
        return Board::make(rank, ranks, 0, misled) ? 1 : 0;
    });
    EXPECT_EQ(statuses, std::vector<int>(ranks, 0));
}

} // namespace
} // namespace annulus::test
