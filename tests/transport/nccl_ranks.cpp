// SPDX-License-Identifier: Apache-2.0
#include "nccl_ranks.hpp"

#include <fstream>
#include <random>
#include <thread>

namespace annulus::test {

namespace {

template <class... Parts> Bytes random_bytes(std::size_t count, Parts... of) {
    std::seed_seq seed{of...};
    std::mt19937 random(seed);
    Bytes bytes(count);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random()); });
    return bytes;
}

Bytes contents(int from, int to, int name, std::size_t bytes, int repetition) {
    return random_bytes(bytes, from, to, name, repetition);
}

} // namespace

int device_count() {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count));
    return count;
}

bool has_board() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find("memfd:annulus") != std::string::npos)
            return true;
    return false;
}

void run_ranks(int ranks, const std::function<void(int)> &part) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&part, rank] {
            try {
                part(rank);
            } catch (const std::exception &error) {
                ADD_FAILURE() << "rank " << rank << ": " << error.what();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
}

std::string expect_refused(annulus_status status, const std::function<void()> &part) {
    try {
        part();
    } catch (const Error &error) {
        EXPECT_STREQ(annulus_status_name(error.status()), annulus_status_name(status)) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
}

void expect_word(const std::string &message, const std::string &word) {
    EXPECT_NE(message.find(word), std::string::npos) << message << " does not say " << word;
}

void expect_gather(Transport &transport, std::size_t bytes, int round) {
    Bytes wanted;
    for (int rank = 0; rank < transport.size(); ++rank) {
        const Bytes part = random_bytes(bytes, round, rank);
        wanted.insert(wanted.end(), part.begin(), part.end());
    }
    Bytes got(wanted.size());
    transport.all_gather(random_bytes(bytes, round, transport.rank()).data(), got.data(), bytes);
    EXPECT_TRUE(got == wanted) << bytes << " bytes in round " << round << " at rank " << transport.rank();
}

Exchange::Exchange(const Transport &transport, const Seat &seat, int round) : rank_(transport.rank()), seat_(seat) {
    std::mt19937 random(static_cast<unsigned>(round));
    for (int from = 0; from < transport.size(); ++from)
        for (int to = 0; to < transport.size(); ++to)
            for (int i = static_cast<int>(random() % 4); i > 0 && from != to; --i)
                add(from, to, i, 1 + random() % (std::size_t{1} << (random() % 20)));
    for (std::size_t i = 0; i < sent_.size(); ++i)
        batch_.sends[i].data = sent_[i].data();
    for (std::size_t i = 0; i < received_.size(); ++i)
        batch_.receives[i].data = received_[i].data();
}

void Exchange::fill(int repetition) {
    for (std::size_t i = 0; i < sent_.size(); ++i)
        sent_[i].set(contents(rank_, batch_.sends[i].peer, sent_names_[i], sent_[i].count(), repetition));
    check_cuda(cudaStreamSynchronize(seat_.stream()));
}

void Exchange::expect_arrived(int repetition) const {
    check_cuda(cudaStreamSynchronize(seat_.stream()));
    for (std::size_t i = 0; i < received_.size(); ++i) {
        const int from = batch_.receives[i].peer;
        EXPECT_TRUE(received_[i].get() == contents(from, rank_, received_names_[i], received_[i].count(), repetition))
            << "message " << received_names_[i] << " from rank " << from << " to rank " << rank_;
    }
}

void Exchange::add(int from, int to, int name, std::size_t bytes) {
    if (from == rank_) {
        sent_.emplace_back(bytes, seat_.stream());
        sent_names_.push_back(name);
        batch_.sends.push_back({to, nullptr, bytes});
    }
    if (to == rank_) {
        received_.emplace_back(bytes, seat_.stream());
        received_names_.push_back(name);
        batch_.receives.push_back({from, nullptr, bytes});
    }
}

void expect_exchanges(Transport &transport, int device, int rounds) {
    const Seat seat(device);
    for (int round = 0; round < rounds; ++round) {
        Exchange first(transport, seat, 2 * round), second(transport, seat, 2 * round + 1);
        first.fill(1);
        second.fill(2);
        first.begin(transport);
        second.begin(transport);
        first.finish(transport);
        second.finish(transport);
        first.expect_arrived(1);
        second.expect_arrived(2);
    }
}

} // namespace annulus::test
