// SPDX-License-Identifier: Apache-2.0
#include "transport/local_transport.hpp"

#include "core/error.hpp"
#include "transport/deadline.hpp"
#include "transport/first_failure.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace annulus {

namespace {

// Memory that one rank offers to another. Events are null on a CPU.
struct Post {
    const void *data;
    std::size_t bytes;
    void *written; // event after which the data may be read
    bool acknowledged = false;
    void *read = nullptr; // event after which the data may be overwritten; it belongs to the reader's device
};

// The posts from one rank to another, oldest first, numbered from 0. The receiver takes them in order. The sender
// retires them in the same order once they are acknowledged.
struct Queue {
    std::deque<Post> posts;
    std::uint64_t taken_count = 0, retired_count = 0;

    bool has_untaken() const { return taken_count < retired_count + posts.size(); }
    Post &next() { return posts[static_cast<std::size_t>(taken_count - retired_count)]; }
};

// What the ends of a communicator share. A wait whose condition already holds succeeds, even if the communicator fails
// afterwards. A rank that has done its part may leave before the other ranks have woken up.
class Hub {
  public:
    explicit Hub(int ranks) : seats_(ranks) {}

    int size() const { return static_cast<int>(seats_.size()); }

    // Throws if an earlier call named another device: the first call decides for the communicator.
    void check_kind(annulus_device device);
    const FirstFailure &failure() const { return failure_; }

    void all_gather(int rank, const void *mine, void *all, std::size_t bytes, const Deadline &deadline);

    void offer(int rank, const std::vector<Transfer> &sends, void *written);
    // Returns true if the sender has to wait for an event of this rank's device.
    bool receive(int rank, const Transfer &receive, Device &device, void *stream, const Deadline &deadline);
    void await_acknowledgement(int rank, const Transfer &send, Device &device, void *stream, const Deadline &deadline);
    // Waits until the sender no longer needs events of this rank's device.
    void await_retirement(int rank, int sender, const Deadline &deadline);

    // Breaks the hub if it is not broken yet.
    void fail(int rank, const char *what);
    // Cleans up after a failed call of a broken hub. Afterwards the rank's memory may be freed.
    void settle(int rank, Device &device, void *stream);
    void abort(int rank);
    void leave(int rank);

  private:
    using Lock = std::unique_lock<std::mutex>;

    struct Seat {
        std::condition_variable wake; // the rank's thread waits here
        bool has_left = false;
        bool is_gathering = false; // has given its bytes to the gather and has not yet read the gathered bytes
        int reader_count = 0;      // number of copies from this rank's memory that are running
    };

    // The scope of a copy from the memory of rank `from`, during which the lock is released.
    class Reading {
      public:
        Reading(Hub &hub, Lock &lock, int from) : hub_(hub), lock_(lock), from_(from) {
            ++hub_.seats_[from_].reader_count;
            lock_.unlock();
        }
        ~Reading() {
            lock_.lock();
            --hub_.seats_[from_].reader_count;
            hub_.seats_[from_].wake.notify_all();
        }
        Reading(const Reading &) = delete;
        Reading &operator=(const Reading &) = delete;

      private:
        Hub &hub_;
        Lock &lock_;
        int from_;
    };

    // Waits until ready() is true. awaited() returns the rank that can make it true.
    template <class Ready, class Awaited>
    void wait(Lock &lock, int rank, const Deadline &deadline, Ready ready, Awaited awaited);
    // Returns the first rank whose is_gathering has this value, but first of all such ranks one that has left.
    int first_gathering(bool is_gathering) const;
    void wait_for_readers(Lock &lock, int rank);
    void break_with(const Error &error);
    [[noreturn]] void break_and_throw(const Error &error);

    std::mutex mutex_;
    FirstFailure failure_; // kept while the mutex is locked
    std::optional<annulus_device> kind_;
    std::vector<Seat> seats_;
    std::map<std::pair<int, int>, Queue> queues_; // by sender and receiver

    // The gather: it is full when all ranks have given their bytes, and free again when all ranks have read.
    std::vector<std::byte> gathered_;
    std::uint64_t full_gathers_ = 0;
    int giver_count_ = 0, reader_count_ = 0;
    std::size_t gather_bytes_ = 0;
};

void Hub::check_kind(annulus_device device) {
    const Lock lock(mutex_);
    if (!kind_)
        kind_ = device;
    if (*kind_ != device)
        throw Error(ANNULUS_ERROR_ARGUMENT, "comm is used with %s by another context; it cannot be used with %s",
                    device_name(*kind_), device_name(device));
}

void Hub::break_with(const Error &error) {
    failure_.keep(error);
    for (Seat &seat : seats_)
        seat.wake.notify_all();
}

void Hub::break_and_throw(const Error &error) {
    break_with(error);
    throw *failure_.get();
}

template <class Ready, class Awaited>
void Hub::wait(Lock &lock, int rank, const Deadline &deadline, Ready ready, Awaited awaited) {
    while (!ready()) {
        failure_.check();
        const int other = awaited();
        if (seats_[other].has_left)
            break_and_throw(Error(ANNULUS_ERROR_COMM, "rank %d destroyed its end of the communicator", other));
        if (deadline.passed())
            break_and_throw(Error(ANNULUS_ERROR_COMM, "rank %d did not come within %g s", other, deadline.seconds()));
        seats_[rank].wake.wait_until(lock, deadline.time());
    }
}

int Hub::first_gathering(bool is_gathering) const {
    int first = size();
    for (int rank = size() - 1; rank >= 0; --rank)
        if (seats_[rank].is_gathering == is_gathering &&
            (first == size() || seats_[rank].has_left || !seats_[first].has_left))
            first = rank;
    return first;
}

void Hub::all_gather(int rank, const void *mine, void *all, std::size_t bytes, const Deadline &deadline) {
    Lock lock(mutex_);
    failure_.check();
    wait(
        lock, rank, deadline, [&] { return reader_count_ == 0; }, [&] { return first_gathering(true); });
    if (giver_count_ == 0) {
        gather_bytes_ = bytes;
        gathered_.resize(bytes * seats_.size());
    }
    if (bytes != gather_bytes_)
        break_and_throw(Error(ANNULUS_ERROR_INTERNAL, "a defect in annulus: rank %d gathers %zu bytes, others %zu",
                              rank, bytes, gather_bytes_));
    std::copy_n(static_cast<const std::byte *>(mine), bytes, gathered_.data() + bytes * rank);
    seats_[rank].is_gathering = true;
    const std::uint64_t before = full_gathers_;
    if (++giver_count_ == size()) {
        giver_count_ = 0;
        reader_count_ = size();
        ++full_gathers_;
        for (Seat &seat : seats_)
            seat.wake.notify_all();
    }
    wait(
        lock, rank, deadline, [&] { return full_gathers_ != before; }, [&] { return first_gathering(false); });
    std::copy(gathered_.begin(), gathered_.end(), static_cast<std::byte *>(all));
    seats_[rank].is_gathering = false;
    if (--reader_count_ == 0)
        for (Seat &seat : seats_)
            seat.wake.notify_all();
}

void Hub::offer(int rank, const std::vector<Transfer> &sends, void *written) {
    const Lock lock(mutex_);
    for (const Transfer &send : sends) {
        queues_[{rank, send.peer}].posts.push_back({send.data, send.bytes, written});
        seats_[send.peer].wake.notify_all();
    }
}

bool Hub::receive(int rank, const Transfer &receive, Device &device, void *stream, const Deadline &deadline) {
    Lock lock(mutex_);
    Queue &queue = queues_[{receive.peer, rank}];
    // The posts of a broken hub are not read: their owners may already have returned.
    wait(
        lock, rank, deadline, [&] { return queue.has_untaken() && !failure_ && !seats_[receive.peer].has_left; },
        [&] { return receive.peer; });
    Post &post = queue.next(); // keeps its address until it is acknowledged
    if (post.bytes != receive.bytes)
        break_and_throw(Error(ANNULUS_ERROR_INTERNAL,
                              "a defect in annulus: rank %d sends %zu bytes where rank %d receives %zu", receive.peer,
                              post.bytes, rank, receive.bytes));
    ++queue.taken_count;
    post.read = [&] {
        const Reading reading(*this, lock, receive.peer);
        DeviceStreams *const streams = device.streams();
        if (streams)
            streams->wait(stream, post.written);
        device.copy(receive.data, post.data, post.bytes, stream);
        return streams ? streams->record(stream) : nullptr;
    }();
    post.acknowledged = true;
    seats_[receive.peer].wake.notify_all();
    return post.read != nullptr;
}

void Hub::await_acknowledgement(int rank, const Transfer &send, Device &device, void *stream,
                                const Deadline &deadline) {
    Lock lock(mutex_);
    Queue &queue = queues_[{rank, send.peer}];
    wait(
        lock, rank, deadline, [&] { return queue.posts.front().acknowledged; }, [&] { return send.peer; });
    if (void *const read = queue.posts.front().read)
        device.streams()->wait(stream, read);
    queue.posts.pop_front();
    ++queue.retired_count;
    seats_[send.peer].wake.notify_all();
}

void Hub::await_retirement(int rank, int sender, const Deadline &deadline) {
    Lock lock(mutex_);
    const Queue &queue = queues_[{sender, rank}];
    wait(
        lock, rank, deadline, [&] { return queue.retired_count == queue.taken_count; }, [&] { return sender; });
}

void Hub::fail(int rank, const char *what) {
    const Lock lock(mutex_);
    if (!failure_)
        break_with(Error(ANNULUS_ERROR_COMM, "rank %d failed: %s", rank, what));
}

void Hub::wait_for_readers(Lock &lock, int rank) {
    Seat &seat = seats_[rank];
    seat.wake.wait(lock, [&] { return seat.reader_count == 0; });
}

void Hub::settle(int rank, Device &device, void *stream) {
    Lock lock(mutex_);
    wait_for_readers(lock, rank);
    for (auto &[ranks, queue] : queues_)
        for (Post &post : queue.posts) {
            // The rank's stream waits for the ranks that read from here, if their events still exist. Other ranks must
            // not wait for events of this rank: from now on its device may be freed.
            if (post.read && ranks.first == rank)
                try {
                    device.streams()->wait(stream, post.read);
                } catch (const Error &) { // the call fails anyway
                }
            if (ranks.first == rank || ranks.second == rank)
                post.read = nullptr;
        }
}

void Hub::abort(int rank) {
    Lock lock(mutex_);
    break_with(Error(ANNULUS_ERROR_COMM, "rank %d aborted the communicator", rank));
    wait_for_readers(lock, rank);
}

void Hub::leave(int rank) {
    Lock lock(mutex_);
    seats_[rank].has_left = true;
    for (Seat &seat : seats_)
        seat.wake.notify_all();
    wait_for_readers(lock, rank);
}

class LocalTransport final : public Transport {
  public:
    LocalTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
    ~LocalTransport() override { hub_->leave(rank_); }

    int size() const override { return hub_->size(); }
    int rank() const override { return rank_; }
    void check_device(annulus_device device, int) const override { hub_->check_kind(device); }
    bool copies_between_devices() const override { return true; }
    void set_timeout(Seconds timeout) override { timeout_ = timeout; }

    void all_gather(const void *mine, void *all, std::size_t bytes) override {
        hub_->all_gather(rank_, mine, all, bytes, Deadline(timeout_));
    }

    bool can_gather(Device &device, void *stream) const override { return !is_capturing(device, stream); }

    void check_stream(Device &device, void *stream) const override {
        if (is_capturing(device, stream))
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "stream is being captured; a local communicator cannot be used then, one of NCCL can");
    }
    void begin(const Batch &batch, Device &device, void *stream) override;
    void finish(const Batch &batch, Device &device, void *stream) override;

    void abort() noexcept override { hub_->abort(rank_); }
    std::optional<Error> failure() const override { return hub_->failure().get(); }

  private:
    // Runs a part of a batch. If it fails, no rank touches this rank's memory afterwards.
    template <class Work> void guarded(Device &device, void *stream, Work work);

    std::shared_ptr<Hub> hub_;
    int rank_;
    Seconds timeout_ = default_timeout;
};

template <class Work> void LocalTransport::guarded(Device &device, void *stream, Work work) {
    try {
        hub_->failure().check();
        work();
    } catch (const std::exception &error) {
        hub_->fail(rank_, error.what());
        hub_->settle(rank_, device, stream);
        throw;
    }
}

void LocalTransport::begin(const Batch &batch, Device &device, void *stream) {
    guarded(device, stream, [&] {
        batch.write_sends();
        if (batch.sends.empty())
            return;
        void *written = nullptr;
        if (DeviceStreams *const streams = device.streams())
            written = streams->record(stream);
        hub_->offer(rank_, batch.sends, written);
    });
}

void LocalTransport::finish(const Batch &batch, Device &device, void *stream) {
    const Deadline deadline(timeout_);
    guarded(device, stream, [&] {
        bool has_events = false;
        for (const Transfer &receive : batch.receives)
            has_events |= hub_->receive(rank_, receive, device, stream, deadline);
        for (const Transfer &send : batch.sends)
            hub_->await_acknowledgement(rank_, send, device, stream, deadline);
        if (!has_events)
            return;
        for (const Transfer &receive : batch.receives)
            hub_->await_retirement(rank_, receive.peer, deadline);
    });
}

} // namespace

std::vector<std::unique_ptr<Transport>> make_local_transports(int ranks) {
    const auto hub = std::make_shared<Hub>(ranks);
    std::vector<std::unique_ptr<Transport>> ends;
    for (int rank = 0; rank < ranks; ++rank)
        ends.push_back(std::make_unique<LocalTransport>(hub, rank));
    return ends;
}

} // namespace annulus
