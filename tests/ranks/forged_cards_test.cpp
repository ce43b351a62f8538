// SPDX-License-Identifier: Apache-2.0
// Cards that no rank of this library sends lead to an error of one line, and nothing is computed with them.
#include "core/error.hpp"
#include "ranks/agreement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

using Forge = std::function<void(std::vector<std::byte> &card)>;

// The transport of rank 0 of two ranks. Rank 1 sends a forged copy of rank 0's card.
class ForgedTransport : public Transport {
  public:
    explicit ForgedTransport(Forge forge) : forge_(std::move(forge)) {}

    int size() const override { return 2; }
    int rank() const override { return 0; }
    void check_device(annulus_device, int) const override {}
    void set_timeout(Seconds) override {}
    void all_gather(const void *mine, void *all, std::size_t bytes) override {
        const auto *const own = static_cast<const std::byte *>(mine);
        std::vector<std::byte> others(own, own + bytes);
        forge_(others);
        std::memcpy(all, own, bytes);
        std::memcpy(static_cast<std::byte *>(all) + bytes, others.data(), bytes);
    }
    bool can_gather(Device &, void *) const override { return true; }
    void begin(const Batch &, Device &, void *) override {}
    void finish(const Batch &, Device &, void *) override {}
    void abort() noexcept override {}
    std::optional<Error> failure() const override { return std::nullopt; }

  private:
    const Forge forge_;
};

constexpr std::int64_t rows = 0x1234567; // a number that a card holds once

// Returns the message with which rank 0 refuses, or "" if it agrees.
std::string refusal(const Forge &forge) {
    Pattern pattern;
    pattern.branches.emplace_back();
    CallProblem problem;
    problem.rows.queries.length = rows;
    ForgedTransport transport(forge);
    try {
        agree(transport, {ANNULUS_PASS_FORWARD, pattern, ANNULUS_EXCHANGE_AUTO, problem, {}, false});
    } catch (const Error &error) {
        return error.what();
    }
    return "";
}

void replace_rows(std::vector<std::byte> &card, std::int64_t number) {
    std::byte from[sizeof rows], to[sizeof rows];
    std::memcpy(from, &rows, sizeof rows);
    std::memcpy(to, &number, sizeof number);
    const auto found = std::search(card.begin(), card.end(), std::begin(from), std::end(from));
    ASSERT_NE(found, card.end());
    std::copy(std::begin(to), std::end(to), found);
}

TEST(ForgedCards, AreAgreedToAsLongAsTheyMakeSense) {
    EXPECT_EQ(refusal([](std::vector<std::byte> &) {}), "");
    EXPECT_EQ(refusal([](std::vector<std::byte> &card) { replace_rows(card, 5); }), "");
}

TEST(ForgedCards, OfFewerThanNoRows) {
    for (const std::int64_t number : {std::int64_t{-1}, -rows, std::int64_t{INT64_MIN}})
        EXPECT_EQ(refusal([number](std::vector<std::byte> &card) { replace_rows(card, number); }),
                  "rank 1 tells of " + std::to_string(number) + " rows; no rank has fewer than 0");
}

TEST(ForgedCards, BringNothingToATerminal) {
    const std::string message =
        refusal([](std::vector<std::byte> &card) { // it declines, with a text that has no terminating zero
            std::fill(card.begin(), card.end(), std::byte{'\n'});
            card[card.size() - 9] = std::byte{0x1b};
            card[card.size() - 8] = std::byte{0x9b};
        });
    EXPECT_EQ(message.find("rank 1 cannot do its part: ???"), 0U) << message;
    EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; })) << message;
}

} // namespace
} // namespace annulus::test
