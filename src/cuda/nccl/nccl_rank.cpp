// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/nccl_rank.hpp"

#include "cuda/device/cuda_error.hpp"
#include "cuda/nccl/nccl_calls.hpp"
#include "engine/blocked_signals.hpp"
#include "engine/device.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

namespace annulus {

namespace {

constexpr std::size_t usual_gather_bytes = 4096; // from each rank

} // namespace

NcclRank::NcclRank(ncclComm_t comm, Hold hold, bool only_nccl) : hold_(hold), only_nccl_(only_nccl), comm_(comm) {
    check(nccl().comm_count(comm, &size_), "ncclCommCount");
    check(nccl().comm_user_rank(comm, &rank_), "ncclCommUserRank");
    check(nccl().comm_cu_device(comm, &device_), "ncclCommCuDevice");
    const OnDevice on_device(device_);
    stream_ = make_stream();
    gathered_ = make_event();
    reserve(usual_gather_bytes * size_);
    times_.resize(size_);
    const BlockedSignals in_watcher;
    watcher_ = std::thread(&NcclRank::watch_all, this);
}

NcclRank::~NcclRank() {
    {
        const std::lock_guard lock(state_mutex_);
        must_stop_ = true;
    }
    state_changed_.notify_all();
    watcher_.join();
    const CurrentDevice current(device_);
    const BesideCaptures beside_captures;
    if (drain()) {
        peer_copies_.reset();
    } else { // streams or other ranks may still use the outbox, so it stays allocated
        static_cast<void>(peer_copies_.release());
        board_->leave(static_cast<bool>(failure_));
        static_cast<void>(board_.release());
    }
    if (comm_ && hold_ == Hold::owned)
        close();
    if (may_hang()) {
        // A gather may still use the memory, and CUDA frees memory only after the device has completed all its work.
        // The memory stays allocated; streams and events end by themselves.
        static_cast<void>(host_.release());
        static_cast<void>(memory_.release());
    } else {
        cudaStreamSynchronize(stream_.get()); // an aborted gather may be ending just now
    }
    works_.clear();
    host_.reset();
    memory_.reset();
    gathered_.reset();
    stream_.reset();
}

bool NcclRank::may_hang() noexcept {
    if (!comm_ || hold_ == Hold::owned)
        return false;
    if (failure_)
        return true;
    try {
        return is_working();
    } catch (const Error &) {
        return true;
    }
}

void NcclRank::close() noexcept {
    const Deadline deadline(closing_time);
    ncclResult_t state = nccl().comm_finalize(comm_);
    for (NcclPause pause; state == ncclInProgress && !deadline.passed(); pause())
        if (const ncclResult_t result = nccl().comm_get_async_error(comm_, &state); result != ncclSuccess)
            state = result;
    if (state == ncclSuccess)
        nccl().comm_destroy(comm_);
    else
        nccl().comm_abort(comm_);
}

void NcclRank::check_device(annulus_device device, int index) const {
    if (device != ANNULUS_DEVICE_CUDA)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "comm is an NCCL communicator; the context must be on a CUDA device");
    if (index != device_)
        throw Error(ANNULUS_ERROR_ARGUMENT, "comm is on CUDA device %d; it must be on the context's, CUDA device %d",
                    device_, index);
}

template <class Part> void NcclRank::run(Part part) {
    failure_.check();
    try {
        const OnDevice on_device(device_);
        const BesideCaptures beside_captures;
        part();
    } catch (const Error &error) {
        break_with(error);
    } catch (const std::bad_alloc &) {
        break_with(Error(ANNULUS_ERROR_COMM, "out of memory"));
    }
    failure_.check();
}

void NcclRank::break_with(const Error &error) noexcept {
    {
        const std::lock_guard lock(state_mutex_);
        failure_.keep(error);
        if (board_)
            board_->leave(true);
    }
    state_changed_.notify_all();
}

std::unique_lock<std::mutex> NcclRank::lock_comm() {
    std::unique_lock lock(comm_mutex_, std::defer_lock);
    for (NcclPause pause; !lock.try_lock(); pause())
        failure_.check();
    failure_.check();
    return lock;
}

template <class Call> void NcclRank::call(Call part) {
    {
        const auto lock = lock_comm();
        part();
    }
    await([] { return true; });
}

// The timeout does not run while NCCL waits for earlier work on this GPU. If another rank causes that wait, the
// watching thread notices it.
template <class Ready> void NcclRank::await(Ready ready) {
    Deadline deadline(timeout_);
    const auto is_over = [&] {
        const auto lock = lock_comm();
        return is_ready(comm_) && ready();
    };
    for (NcclPause pause; !is_over(); pause())
        check_in_time(deadline);
}

void NcclRank::reserve(std::size_t bytes) {
    if (bytes <= capacity_)
        return;
    capacity_ = 0;
    void *memory;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    host_.reset(static_cast<std::byte *>(memory));
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    memory_.reset(static_cast<std::byte *>(memory));
    capacity_ = bytes;
}

void NcclRank::all_gather(const void *mine, void *all, std::size_t bytes) {
    run([&] { gather(mine, all, bytes); });
}

void NcclRank::gather(const void *mine, void *all, std::size_t bytes) {
    if (!std::exchange(has_looked_for_board_, true))
        look_for_board();
    if (board_)
        gather_on_board(mine, all, bytes);
    else
        gather_by_nccl(mine, all, bytes);
}

void NcclRank::look_for_board() {
    const char only_nccl = only_nccl_ ? 1 : 0;
    std::vector<char> all(static_cast<std::size_t>(size_));
    gather_by_nccl(&only_nccl, all.data(), sizeof only_nccl);
    if (std::ranges::find(all, 1) != all.end())
        return;
    std::unique_ptr<Board> board =
        Board::make(rank_, size_, PeerCopies::signal_bytes(size_),
                    [&](const void *own, void *gathered, std::size_t each) { gather_by_nccl(own, gathered, each); });
    if (!board)
        return;
    {
        const std::lock_guard lock(state_mutex_);
        board_ = std::move(board);
    }
    std::unique_ptr<PeerCopies> copies =
        PeerCopies::make(rank_, size_, board_->common(), [&](const void *own, void *gathered, std::size_t each) {
            gather_on_board(own, gathered, each);
        });
    const std::lock_guard lock(state_mutex_);
    peer_copies_ = std::move(copies);
}

// On the board, which does not involve the device, a rank waits for the other ranks' host threads alone. While this
// rank's earlier work is still running, that work may be what delays the other ranks, too. The watching thread watches
// it.
void NcclRank::gather_on_board(const void *mine, void *all, std::size_t bytes) {
    Deadline deadline(timeout_);
    board_->all_gather(mine, all, bytes, [&](int rank) {
        if (peer_copies_ && peer_copies_->has_ended(rank))
            throw_left(rank);
        check_in_time(deadline);
    });
}

void NcclRank::check_in_time(Deadline &deadline) {
    failure_.check();
    if (is_working())
        deadline = Deadline(timeout_);
    else if (deadline.passed())
        throw_late();
}

void NcclRank::reserve(const std::vector<std::size_t> &bytes_to) {
    if (!peer_copies_)
        return;
    run([&] {
        Deadline deadline(timeout_);
        const bool has_more = peer_copies_->reserve(
            bytes_to, [&](const void *mine, void *all, std::size_t bytes) { gather_on_board(mine, all, bytes); },
            [&] { check_in_time(deadline); });
        if (has_more)
            connect_by_nccl();
    });
}

// NCCL carries the messages of a stream that is being captured, and NCCL cannot connect ranks during a capture.
void NcclRank::connect_by_nccl() {
    Batch batch;
    for (int peer = 0; peer < size_; ++peer) {
        if (peer_copies_->has_room(rank_, peer))
            batch.sends.push_back({peer, memory_.get(), 1});
        if (peer_copies_->has_room(peer, rank_))
            batch.receives.push_back({peer, memory_.get() + 1 + peer, 1});
    }
    if (batch.empty())
        return;
    send_by_nccl(batch, stream_.get());
    check(cudaEventRecord(gathered_.get(), stream_.get()), "cudaEventRecord");
    await([&] { return is_done(gathered_); });
}

void NcclRank::gather_by_nccl(const void *mine, void *all, std::size_t bytes) {
    // If a rank aborts, NCCL's kernel on it lets the neighbours' kernels go on with old contents of their buffers.
    // They would seem to have heard from all ranks. Therefore each rank's part carries a time, which must be later
    // than the time in the rank's last part.
    const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    const std::size_t part_bytes = sizeof now + bytes, all_bytes = part_bytes * size_;
    const std::size_t offset = part_bytes * rank_;
    reserve(all_bytes);
    std::byte *const host = host_.get(), *const memory = memory_.get();
    std::memset(host, 0, all_bytes);
    std::memcpy(host + offset, &now, sizeof now);
    std::memcpy(host + offset + sizeof now, mine, bytes);
    check(cudaMemcpyAsync(memory, host, all_bytes, cudaMemcpyHostToDevice, stream_.get()), "cudaMemcpyAsync");
    call([&] {
        check(nccl().all_gather(memory + offset, memory, part_bytes, ncclUint8, comm_, stream_.get()), "ncclAllGather");
    });
    check(cudaMemcpyAsync(host, memory, all_bytes, cudaMemcpyDeviceToHost, stream_.get()), "cudaMemcpyAsync");
    check(cudaEventRecord(gathered_.get(), stream_.get()), "cudaEventRecord");
    await([&] { return is_done(gathered_); });
    for (int i = 0; i < size_; ++i) {
        const std::byte *const part = host + i * part_bytes;
        std::int64_t time;
        std::memcpy(&time, part, sizeof time);
        if (time <= times_[i])
            throw_late();
        times_[i] = time;
        std::memcpy(static_cast<std::byte *>(all) + i * bytes, part + sizeof now, bytes);
    }
}

void NcclRank::begin(const Batch &batch, Device &device, void *stream) {
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    run([&] {
        if (batch.empty())
            return batch.write_sends();
        // Work that is captured into a graph is not watched: events do not tell when the graph will run.
        std::optional<Work> work;
        if (!is_capturing(device, stream)) {
            work.emplace();
            check(cudaEventRecord(work->begun.get(), cuda_stream), "cudaEventRecord");
        }
        if (work && peer_copies_) {
            peer_copies_->begin(batch, cuda_stream, rest_);
            if (failure_) // the watching thread may have released the streams before
                peer_copies_->release();
            if (!rest_.empty())
                send_by_nccl(rest_, cuda_stream);
        } else {
            batch.write_sends();
            send_by_nccl(batch, cuda_stream);
        }
        if (work) {
            check(cudaEventRecord(work->ended.get(), cuda_stream), "cudaEventRecord");
            watch(std::move(*work));
        }
    });
}

void NcclRank::send_by_nccl(const Batch &batch, cudaStream_t stream) {
    call([&] {
        NcclGroup group;
        for (const Transfer &send : batch.sends)
            group.add(nccl().send(send.data, send.bytes, ncclUint8, send.peer, comm_, stream), "ncclSend");
        for (const Transfer &receive : batch.receives)
            group.add(nccl().recv(receive.data, receive.bytes, ncclUint8, receive.peer, comm_, stream), "ncclRecv");
        group.end();
    });
}

// begin() has already given the whole batch to the stream.
void NcclRank::finish(const Batch &, Device &, void *) {
    run([&] {
        const auto lock = lock_comm();
        is_ready(comm_);
    });
}

} // namespace annulus
