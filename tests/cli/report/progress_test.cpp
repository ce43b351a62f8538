// SPDX-License-Identifier: Apache-2.0
// Tests the estimate of a job's progress at given times, and what is written where.
#include "cli/report/progress.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <thread>

namespace annulus::cli {
namespace {

using namespace std::chrono_literals;

class PaceTest : public testing::Test {
  protected:
    static Pace::Clock::time_point at(std::chrono::milliseconds time) { return Pace::Clock::time_point(1h + time); }
    // Returns the text for a job that began at time 0.
    std::string said(std::chrono::seconds time) const { return pace_.text(at(time), time); }

    Pace pace_{100}; // units of work
};

TEST_F(PaceTest, SaysNothingOfWhatIsLeftBeforeAPieceIsDone) {
    EXPECT_EQ(said(5s), "0% 0:05");
    pace_.begin(50, at(0s));
    EXPECT_EQ(said(75s), "0% 1:15");
}

// Pieces of 10, 20 and 70 units; each takes a second for a unit.
TEST_F(PaceTest, EstimatesByWorkAndNotByPieces) {
    pace_.begin(10, at(0s));
    pace_.begin(20, at(10s));
    EXPECT_EQ(said(10s), "10% 0:10, 1:30 left");
    pace_.begin(70, at(30s));
    EXPECT_EQ(said(30s), "30% 0:30, 1:10 left");
}

TEST_F(PaceTest, MovesWithinAPiece) {
    pace_.begin(10, at(0s));
    pace_.begin(80, at(10s));
    EXPECT_EQ(said(11s), "11% 0:11, 1:29 left");
    EXPECT_EQ(said(50s), "50% 0:50, 0:50 left");
}

TEST_F(PaceTest, WaitsForAPieceThatTakesLonger) {
    pace_.begin(40, at(0s));
    pace_.begin(40, at(10s));
    EXPECT_EQ(said(30s), "78% 0:30, 0:08 left");
    EXPECT_EQ(said(60s), "78% 1:00, 0:17 left");
    pace_.begin(20, at(60s));
    EXPECT_EQ(said(60s), "80% 1:00, 0:15 left");
}

// The time before the first piece says nothing about the pieces.
TEST_F(PaceTest, LeavesOutThePreparation) {
    pace_.begin(50, at(20s));
    pace_.begin(50, at(30s));
    EXPECT_EQ(said(30s), "50% 0:30, 0:10 left");
}

// Returns what a job writes that runs until it has written `bytes` bytes.
std::string written(bool is_terminal, long bytes) {
    std::FILE *file = std::tmpfile();
    {
        Progress progress(4, {file, is_terminal, 1ms});
        progress.begin(1);
        while (std::ftell(file) < bytes)
            std::this_thread::sleep_for(1ms);
    }
    std::string text(static_cast<std::size_t>(std::ftell(file)), ' ');
    std::rewind(file);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
    std::fclose(file);
    return text;
}

TEST(Progress, WritesLinesWhereThereIsNoTerminal) {
    const std::string line = "annulus: 0% 0:00\n", text = written(false, 3 * std::ssize(line));
    ASSERT_EQ(text.size() % line.size(), 0U) << text;
    for (std::size_t i = 0; i < text.size(); i += line.size())
        EXPECT_EQ(text.substr(i, line.size()), line);
}

TEST(Progress, TakesTheBarOffATerminal) {
    const std::string bar = "\r[" + std::string(40, '.') + "] 0% 0:00 \x1b[K", text = written(true, std::ssize(bar));
    EXPECT_TRUE(text.starts_with(bar)) << text;
    EXPECT_TRUE(text.ends_with(bar + erase_bar)) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
}

} // namespace
} // namespace annulus::cli
