// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/peer_copies.hpp"

#include "cuda/device/driver.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

namespace annulus {

namespace {

constexpr std::size_t granularity = std::size_t{2} << 20; // of outboxes: CUDA IPC shares whole pages of this size

std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

bool has_reached(std::uint32_t count, std::uint32_t awaited) { // counts may wrap around
    return static_cast<std::int32_t>(count - awaited) >= 0;
}

bool all_say_yes(bool mine, std::size_t ranks, const PeerCopies::Gather &gather) {
    const char own = mine ? 1 : 0;
    std::vector<char> all(ranks);
    gather(&own, all.data(), sizeof own);
    return std::ranges::find(all, 0) == all.end();
}

} // namespace

std::size_t PeerCopies::signal_bytes(int ranks) {
    const auto count = static_cast<std::size_t>(ranks);
    return round_up(count * count * sizeof(Signals), 4096);
}

std::unique_ptr<PeerCopies> PeerCopies::make(int rank, int ranks, void *signals, const Gather &gather) {
    std::unique_ptr<PeerCopies> copies(new PeerCopies(rank, ranks, signals));
    const pid_t own = getpid();
    std::vector<pid_t> processes(static_cast<std::size_t>(ranks));
    gather(&own, processes.data(), sizeof own);
    for (int i = 0; i < ranks; ++i)
        if (i != rank)
            copies->peers_[i].process = static_cast<int>(syscall(SYS_pidfd_open, processes[i], 0));
    std::ranges::sort(processes);
    if (std::ranges::adjacent_find(processes) != processes.end())
        return nullptr;
    bool can_wait = false;
    try {
        copies->wait_value_ = driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32");
        copies->write_value_ = driver_function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32");
        check(cudaHostRegister(signals, signal_bytes(ranks), cudaHostRegisterPortable | cudaHostRegisterMapped),
              "cudaHostRegister");
        can_wait = copies->is_registered_ = true;
    } catch (const Error &) {
    }
    return all_say_yes(can_wait, static_cast<std::size_t>(ranks), gather) ? std::move(copies) : nullptr;
}

PeerCopies::PeerCopies(int rank, int ranks, void *signals)
    : rank_(rank), peers_(static_cast<std::size_t>(ranks)), signals_(static_cast<Signals *>(signals)),
      room_bytes_(peers_.size() * peers_.size()), wanted_bytes_(room_bytes_.size()) {}

PeerCopies::~PeerCopies() {
    close_outboxes();
    for (const Peer &peer : peers_)
        if (peer.process >= 0)
            close(peer.process);
    if (is_registered_)
        cudaHostUnregister(signals_);
}

PeerCopies::Signals &PeerCopies::signals(int from, int to) const {
    return signals_[index_of(from, to)];
}

std::size_t PeerCopies::first_byte(int from, int to) const {
    const auto row = room_bytes_.begin() + from * static_cast<std::ptrdiff_t>(peers_.size());
    return std::accumulate(row, row + to, std::size_t{0});
}

bool PeerCopies::reserve(const std::vector<std::size_t> &bytes_to, const Gather &gather,
                         const std::function<void()> &check_others) {
    if (is_refused_)
        return false;
    gather(bytes_to.data(), wanted_bytes_.data(), bytes_to.size() * sizeof(std::size_t));
    bool is_enough = true;
    for (std::size_t i = 0; i < room_bytes_.size(); ++i) {
        is_enough &= wanted_bytes_[i] <= room_bytes_[i];
        wanted_bytes_[i] = std::max(wanted_bytes_[i], room_bytes_[i]);
    }
    if (is_enough)
        return false;
    // An outbox may be freed once all ranks have read it and have closed it.
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
        while (!has_reached(signals(rank_, peer).seen.count, peers_[peer].sent)) {
            check_others();
            std::this_thread::yield();
        }
    all_say_yes(true, peers_.size(), gather);
    close_outboxes();
    all_say_yes(true, peers_.size(), gather);
    outbox_.reset();
    room_bytes_ = wanted_bytes_;
    if (all_say_yes(open_outboxes(gather), peers_.size(), gather))
        return true;
    is_refused_ = true;
    close_outboxes();
    all_say_yes(true, peers_.size(), gather);
    outbox_.reset();
    std::ranges::fill(room_bytes_, std::size_t{0});
    return false;
}

bool PeerCopies::open_outboxes(const Gather &gather) {
    struct Card {
        bool is_there;
        cudaIpcMemHandle_t handle;
    };
    Card card{};
    const std::size_t bytes = first_byte(rank_, static_cast<int>(peers_.size()));
    void *memory = nullptr;
    if (bytes == 0 || cudaMalloc(&memory, round_up(bytes, granularity)) == cudaSuccess) {
        outbox_.reset(static_cast<std::byte *>(memory));
        card.is_there = bytes == 0 || cudaIpcGetMemHandle(&card.handle, memory) == cudaSuccess;
    }
    std::vector<Card> cards(peers_.size());
    gather(&card, cards.data(), sizeof card);
    bool are_open = std::ranges::all_of(cards, &Card::is_there);
    for (int i = 0; are_open && i < static_cast<int>(cards.size()); ++i) {
        if (!has_room(i, rank_))
            continue;
        are_open = cudaIpcOpenMemHandle(&memory, cards[i].handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
        if (are_open)
            peers_[i].outbox = static_cast<std::byte *>(memory);
    }
    cudaGetLastError(); // clears an error that later checks must not find
    return are_open;
}

void PeerCopies::close_outboxes() noexcept {
    for (Peer &peer : peers_)
        if (void *const outbox = std::exchange(peer.outbox, nullptr))
            cudaIpcCloseMemHandle(outbox);
}

void PeerCopies::await(const Signal &signal, std::uint32_t count, cudaStream_t stream) const {
    check_driver(wait_value_(stream, reinterpret_cast<CUdeviceptr>(&signal.count), count, CU_STREAM_WAIT_VALUE_GEQ),
                 "cuStreamWaitValue32");
}

void PeerCopies::write(const Signal &signal, std::uint32_t count, cudaStream_t stream) const {
    check_driver(
        write_value_(stream, reinterpret_cast<CUdeviceptr>(&signal.count), count, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32");
}

void PeerCopies::choose(const std::vector<Transfer> &transfers, bool are_sends, std::vector<Transfer> &rest) {
    for (Peer &peer : peers_)
        peer.bytes = 0;
    for (const Transfer &transfer : transfers)
        peers_[transfer.peer].bytes = add_message(peers_[transfer.peer].bytes, transfer.bytes);
    rest.clear();
    for (const Transfer &transfer : transfers) {
        Peer &peer = peers_[transfer.peer];
        if (peer.bytes > room_bytes_[are_sends ? index_of(rank_, transfer.peer) : index_of(transfer.peer, rank_)])
            rest.push_back(transfer);
    }
    for (const Transfer &transfer : rest)
        peers_[transfer.peer].bytes = 0;
}

void PeerCopies::write_sends(const Batch &batch, cudaStream_t stream) {
    places_ = batch.sends;
    for (int i = 0; i < static_cast<int>(peers_.size()); ++i) {
        if (peers_[i].bytes == 0)
            continue;
        await(signals(rank_, i).read, peers_[i].sent, stream);
        std::size_t at = first_byte(rank_, i);
        for (Transfer &place : places_)
            if (place.peer == i) {
                place.data = outbox_.get() + at;
                at = add_message(at, place.bytes);
            }
    }
    if (batch.write)
        return batch.write(places_);
    for (std::size_t i = 0; i < places_.size(); ++i)
        if (places_[i].data != batch.sends[i].data)
            check(cudaMemcpyAsync(places_[i].data, batch.sends[i].data, places_[i].bytes, cudaMemcpyDeviceToDevice,
                                  stream),
                  "cudaMemcpyAsync");
}

void PeerCopies::begin(const Batch &batch, cudaStream_t stream, Batch &rest) {
    choose(batch.sends, true, rest.sends);
    write_sends(batch, stream);
    for (int i = 0; i < static_cast<int>(peers_.size()); ++i)
        if (peers_[i].bytes > 0)
            write(signals(rank_, i).written, ++peers_[i].sent, stream);
    choose(batch.receives, false, rest.receives);
    for (int i = 0; i < static_cast<int>(peers_.size()); ++i) {
        Peer &peer = peers_[i];
        if (peer.bytes == 0)
            continue;
        const Signals &from_peer = signals(i, rank_);
        await(from_peer.written, ++peer.received, stream);
        std::size_t at = first_byte(i, rank_);
        for (const Transfer &receive : batch.receives)
            if (receive.peer == i) {
                check(cudaMemcpyAsync(receive.data, peer.outbox + at, receive.bytes, cudaMemcpyDefault, stream),
                      "cudaMemcpyAsync");
                at = add_message(at, receive.bytes);
            }
        write(from_peer.read, peer.received, stream);
        write(from_peer.seen, peer.received, stream);
    }
}

bool PeerCopies::has_outstanding(int peer) const {
    return !has_reached(signals(rank_, peer).seen.count, peers_[peer].sent) ||
           !has_reached(signals(peer, rank_).written.count, peers_[peer].received);
}

bool PeerCopies::has_ended(int peer) const {
    pollfd process{peers_[peer].process, POLLIN, 0};
    return process.fd >= 0 && poll(&process, 1, 0) == 1;
}

bool PeerCopies::may_be_read() const {
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
        if (!has_reached(signals(rank_, peer).seen.count, peers_[peer].sent) && !has_ended(peer))
            return true;
    return false;
}

void PeerCopies::release() noexcept {
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
        signals(rank_, peer).read.count = peers_[peer].sent.load();
        signals(peer, rank_).written.count = peers_[peer].received.load();
    }
}

} // namespace annulus
