// SPDX-License-Identifier: Apache-2.0
#include "traffic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

using namespace annulus;

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint8_t untouched = 0xEE;
constexpr std::size_t margin = 16; // bytes behind the received ones

Bytes contents(unsigned seed, std::size_t bytes) {
    std::minstd_rand random(seed + 1);
    Bytes result(bytes);
    std::ranges::generate(result, [&] { return static_cast<std::uint8_t>(random() >> 8); });
    return result;
}

struct Message {
    int from, to;
    std::size_t bytes;
    unsigned seed;
};

std::vector<Message> random_messages(std::minstd_rand &random, int ranks) {
    std::vector<Message> messages(random() % (2 * ranks + 2));
    for (Message &message : messages) {
        message.from = static_cast<int>(random() % ranks);
        message.to = static_cast<int>(random() % ranks);
        message.bytes = 1 + random() % (random() % 8 == 0 ? 200000 : 300);
        message.seed = static_cast<unsigned>(random());
    }
    return messages;
}

// A rank's messages of a batch, and their memory.
struct RankMessages {
    std::vector<Message> received;
    std::deque<Bytes> sources, targets;
    Batch batch;

    RankMessages(const std::vector<Message> &messages, int rank) {
        for (const Message &message : messages) {
            if (message.from == rank) {
                Bytes &source = sources.emplace_back(contents(message.seed, message.bytes));
                batch.sends.push_back({message.to, source.data(), message.bytes});
            }
            if (message.to == rank) {
                Bytes &target = targets.emplace_back(message.bytes + margin, untouched);
                batch.receives.push_back({message.from, target.data(), message.bytes});
                received.push_back(message);
            }
        }
    }

    void check() {
        // From here on this rank may change the sources again.
        for (Bytes &source : sources)
            std::ranges::fill(source, untouched);
        for (std::size_t i = 0; i < received.size(); ++i) {
            Bytes wanted = contents(received[i].seed, received[i].bytes);
            wanted.insert(wanted.end(), margin, untouched);
            EXPECT_TRUE(targets[i] == wanted)
                << received[i].bytes << " bytes from rank " << received[i].from << " to rank " << received[i].to;
        }
    }
};

} // namespace

void check_gathers(Transport &transport, unsigned seed) {
    std::minstd_rand random(seed);
    for (int round = 0; round < 50; ++round) {
        const std::size_t bytes = 1 + random() % 3000;
        const unsigned round_seed = static_cast<unsigned>(random());
        Bytes wanted;
        for (int rank = 0; rank < transport.size(); ++rank) {
            const Bytes part = contents(round_seed + rank, bytes);
            wanted.insert(wanted.end(), part.begin(), part.end());
        }
        const Bytes mine = contents(round_seed + transport.rank(), bytes);
        Bytes all(wanted.size(), untouched);
        transport.all_gather(mine.data(), all.data(), bytes);
        EXPECT_TRUE(all == wanted) << "round " << round << " on rank " << transport.rank();
    }
}

void check_exchanges(Transport &transport, Device &device, unsigned seed) {
    std::minstd_rand random(seed);
    std::deque<RankMessages> in_flight;
    const auto finish_oldest = [&] {
        transport.finish(in_flight.front().batch, device, nullptr);
        in_flight.front().check();
        in_flight.pop_front();
    };
    for (int round = 0; round < 60; ++round) {
        in_flight.emplace_back(random_messages(random, transport.size()), transport.rank());
        transport.begin(in_flight.back().batch, device, nullptr);
        for (std::size_t most = random() % 3; in_flight.size() > most;)
            finish_oldest();
    }
    while (!in_flight.empty())
        finish_oldest();
}

void expect_error(annulus_status status, const std::string &message, const std::function<void()> &call) {
    try {
        call();
        ADD_FAILURE() << "no error: " << message;
    } catch (const annulus::Error &error) {
        EXPECT_EQ(error.status(), status);
        EXPECT_EQ(error.what(), message);
    }
}
