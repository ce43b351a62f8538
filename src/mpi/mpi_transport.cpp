// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_transport.hpp"

#include "core/error.hpp"
#include "transport/deadline.hpp"
#include "transport/first_failure.hpp"

#include <mpi.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <deque>
#include <optional>
#include <thread>

namespace annulus {

namespace {

// The part of the timeout, and the longest time, that a failed call spends on cancelling its messages.
constexpr double give_up_fraction = 0.05;
constexpr Transport::Seconds max_give_up_time{1};

enum Tag { tag_batch, tag_gather };

void check(int code, const char *function) {
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw Error(ANNULUS_ERROR_COMM_LIBRARY, "%s failed: %.300s", function, text).from("mpi", code);
}

bool is_running() {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized && !finalized;
}

// The pause between two tests of a request. It does not sleep at first, since most messages arrive soon.
class Pause {
  public:
    void operator()() {
        if (Deadline::Clock::now() < spin_until_)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(50));
    }

  private:
    Deadline::Clock::time_point spin_until_ = Deadline::Clock::now() + std::chrono::milliseconds(1);
};

// Blocks SIGPIPE in this thread. If a peer process that was connected by TCP has died, Open MPI still writes to its
// socket. The SIGPIPE would end this process before it could report its error. The signal is blocked around all calls
// that let MPI send; the signal handling of the process stays unchanged.
class PipeSignal {
  public:
    PipeSignal() {
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        was_pending_ = is_pending();
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    ~PipeSignal() {
        const timespec at_once{};
        if (!was_pending_ && is_pending())
            sigtimedwait(&pipe_, nullptr, &at_once);
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    PipeSignal(const PipeSignal &) = delete;
    PipeSignal &operator=(const PipeSignal &) = delete;

  private:
    static bool is_pending() {
        sigset_t pending;
        return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    }

    sigset_t pipe_, before_;
    bool was_pending_;
};

// A part of a transfer that is not complete yet.
struct Piece {
    MPI_Request request;
    int peer;
    int bytes;
    bool is_receive;
};

class MpiTransport final : public Transport {
  public:
    MpiTransport(MPI_Comm parent, std::size_t piece_bytes);
    ~MpiTransport() override;

    int size() const override { return size_; }
    int rank() const override { return rank_; }

    void check_device(annulus_device device, int) const override {
        if (device != ANNULUS_DEVICE_CPU)
            throw Error(ANNULUS_ERROR_UNSUPPORTED,
                        "comm is a communicator of MPI, which is for contexts on CPUs; those on GPUs need one of NCCL");
    }

    void set_timeout(Seconds timeout) override { timeout_ = timeout; }
    void all_gather(const void *mine, void *all, std::size_t bytes) override;
    bool can_gather(Device &, void *) const override { return true; }
    void begin(const Batch &batch, Device &device, void *stream) override;
    void finish(const Batch &batch, Device &device, void *stream) override;
    bool holds_memory() const override { return holds_memory_; }
    void abort() noexcept override {
        failure_.keep(Error(ANNULUS_ERROR_COMM, "rank %d aborted the communicator", rank_));
    }
    std::optional<Error> failure() const override { return failure_.get(); }

  private:
    using Flight = std::vector<Piece>;

    // Does some work. If it fails, the transport is broken and all messages that were begun are given up.
    template <class Work> void guarded(Work work);
    void listen() const;
    void start(Flight &flight, const Transfer &transfer, Tag tag, bool is_receive);
    void complete(Flight &flight, const Deadline &deadline);
    void complete(Piece &piece, const Deadline &deadline);
    void give_up() noexcept;

    const std::size_t piece_bytes_;
    MPI_Comm comm_ = MPI_COMM_NULL;
    int size_ = 0, rank_ = 0;
    Seconds timeout_ = default_timeout;
    FirstFailure failure_;
    bool holds_memory_ = false;
    std::deque<Flight> flights_; // messages of the batches that were begun, oldest first
};

MpiTransport::MpiTransport(MPI_Comm parent, std::size_t piece_bytes) : piece_bytes_(piece_bytes) {
    const PipeSignal blocked;
    check(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
}

// MPI_Comm_free() is collective. If other ranks may not call it, MPI_Finalize() frees the communicator.
MpiTransport::~MpiTransport() {
    if (!is_running())
        return;
    const PipeSignal blocked;
    const bool is_idle = flights_.empty() && !failure_;
    give_up();
    if (is_idle)
        MPI_Comm_free(&comm_);
}

template <class Work> void MpiTransport::guarded(Work work) {
    const PipeSignal blocked;
    try {
        failure_.check();
        work();
    } catch (const std::exception &error) {
        const auto *own = dynamic_cast<const Error *>(&error);
        failure_.keep(own ? *own : Error(ANNULUS_ERROR_COMM, "rank %d failed: %s", rank_, error.what()));
        give_up();
        throw *failure_.get();
    }
}

// Cancels receives. A receive that is already arriving cannot be cancelled, and is waited for a short time. Sends
// cannot be cancelled.
void MpiTransport::give_up() noexcept {
    const Deadline deadline(std::min(timeout_ * give_up_fraction, max_give_up_time));
    for (Flight &flight : flights_)
        for (Piece &piece : flight) {
            if (piece.request == MPI_REQUEST_NULL)
                continue;
            if (piece.is_receive)
                MPI_Cancel(&piece.request);
            int is_done = 0;
            for (Pause pause;; pause())
                if (MPI_Test(&piece.request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || is_done ||
                    !piece.is_receive || deadline.passed())
                    break;
            holds_memory_ |= !is_done;
        }
    flights_.clear();
}

// Lets MPI process what arrived while the rank computed. Open MPI crashes if it sends through a connection whose other
// end has gone before it has noticed that.
void MpiTransport::listen() const {
    int found = 0;
    check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
}

void MpiTransport::start(Flight &flight, const Transfer &transfer, Tag tag, bool is_receive) {
    for (std::size_t done = 0; done < transfer.bytes; done += piece_bytes_) {
        void *const data = static_cast<std::byte *>(transfer.data) + done;
        const int bytes = static_cast<int>(std::min(transfer.bytes - done, piece_bytes_));
        flight.push_back({MPI_REQUEST_NULL, transfer.peer, bytes, is_receive});
        MPI_Request &request = flight.back().request;
        if (is_receive)
            check(MPI_Irecv(data, bytes, MPI_BYTE, transfer.peer, tag, comm_, &request), "MPI_Irecv");
        else
            check(MPI_Isend(data, bytes, MPI_BYTE, transfer.peer, tag, comm_, &request), "MPI_Isend");
    }
}

void MpiTransport::complete(Piece &piece, const Deadline &deadline) {
    MPI_Status status;
    int is_done = 0;
    for (Pause pause;; pause()) {
        check(MPI_Test(&piece.request, &is_done, &status), "MPI_Test");
        if (is_done)
            break;
        failure_.check();
        if (deadline.passed())
            throw Error(ANNULUS_ERROR_COMM, "rank %d did not come within %g s", piece.peer, deadline.seconds());
    }
    if (!piece.is_receive)
        return;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (bytes != piece.bytes)
        throw Error(ANNULUS_ERROR_INTERNAL, "a defect in annulus: rank %d sends %d bytes where rank %d receives %d",
                    piece.peer, bytes, rank_, piece.bytes);
}

void MpiTransport::complete(Flight &flight, const Deadline &deadline) {
    for (Piece &piece : flight)
        complete(piece, deadline);
}

// Gathers by messages. MPI's own collective cannot be cancelled if a rank is missing, and does not tell which one.
void MpiTransport::all_gather(const void *mine, void *all, std::size_t bytes) {
    const Deadline deadline(timeout_);
    guarded([&] {
        listen();
        Flight &flight = flights_.emplace_back();
        const auto part = [&](int rank) { return static_cast<std::byte *>(all) + bytes * rank; };
        for (int peer = 0; peer < size_; ++peer)
            if (peer != rank_)
                start(flight, {peer, part(peer), bytes}, tag_gather, true);
        for (int peer = 0; peer < size_; ++peer)
            if (peer != rank_)
                start(flight, {peer, const_cast<void *>(mine), bytes}, tag_gather, false);
        std::memcpy(part(rank_), mine, bytes);
        complete(flight, deadline);
        flights_.pop_back();
    });
}

void MpiTransport::begin(const Batch &batch, Device &, void *) {
    guarded([&] {
        listen();
        batch.write_sends();
        Flight &flight = flights_.emplace_back();
        for (const Transfer &receive : batch.receives)
            start(flight, receive, tag_batch, true);
        for (const Transfer &send : batch.sends)
            start(flight, send, tag_batch, false);
    });
}

void MpiTransport::finish(const Batch &, Device &, void *) {
    const Deadline deadline(timeout_);
    guarded([&] {
        complete(flights_.front(), deadline);
        flights_.pop_front();
    });
}

} // namespace

std::unique_ptr<Transport> make_mpi_transport(const void *mpi_comm, std::size_t piece_bytes) {
    if (!is_running())
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "mpi_comm is used while MPI (%s) is not initialised, or is finalised already",
                    mpi_library_version());
    const MPI_Comm comm = *static_cast<const MPI_Comm *>(mpi_comm);
    if (comm == MPI_COMM_NULL)
        throw Error(ANNULUS_ERROR_ARGUMENT, "mpi_comm points to MPI_COMM_NULL; it must point to a communicator");
    return std::make_unique<MpiTransport>(comm, piece_bytes);
}

const char *mpi_library_version() noexcept {
    static const auto line = []() noexcept {
        std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
        int length = 0;
        if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS)
            length = 0;
        // Keep the name and the version; the text after them is about the build.
        *std::find_if(text.begin(), text.begin() + length, [](char c) { return c == ',' || c == '\n'; }) = '\0';
        std::replace(text.begin(), text.end(), '\t', ' ');
        return text;
    }();
    return line.data();
}

} // namespace annulus
