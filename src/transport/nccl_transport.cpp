// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_transport.hpp"

#include "cuda/device/cuda_device.hpp"
#include "cuda/device/cuda_error.hpp"
#include "cuda/device/cuda_handle.hpp"
#include "transport/deadline.hpp"
#include "transport/nccl_library.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace annulus {

namespace {

using namespace std::chrono_literals;

constexpr auto watch_interval = 50ms;
constexpr Transport::Seconds closing_time{2};
constexpr std::size_t usual_gather_bytes = 4096; // from each rank

// Between the looks of a thread that waits: short at first, when what it waits for takes microseconds.
class Pause {
  public:
    void operator()() {
        if (spins_ > 0 && spins_--)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(20us);
    }

  private:
    int spins_ = 200;
};

// NCCL calls that belong together. The group is ended whatever becomes of them.
class Group {
  public:
    Group() { check(nccl().group_start(), "ncclGroupStart"); }
    ~Group() {
        if (!ended_)
            nccl().group_end();
    }
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    void add(ncclResult_t result, const char *what) {
        if (result_ != ncclSuccess || result == ncclInProgress)
            return;
        result_ = result;
        what_ = what;
    }
    // Throws what failed first.
    void end() {
        ended_ = true;
        add(nccl().group_end(), "ncclGroupEnd");
        check(result_, what_);
    }

  private:
    bool ended_ = false;
    ncclResult_t result_ = ncclSuccess;
    const char *what_ = "";
};

// Whether the communicator has done what it was asked for. Throws where that failed.
bool is_ready(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    check(nccl().comm_get_async_error(comm, &state), "ncclCommGetAsyncError");
    check(state, "NCCL's work");
    return state == ncclSuccess;
}

class NcclTransport final : public Transport {
  public:
    // Takes an owned communicator over once nothing can throw any more.
    NcclTransport(ncclComm_t comm, bool owned, Seconds timeout);
    ~NcclTransport() override;

    int size() const override { return size_; }
    int rank() const override { return rank_; }
    void check_device(annulus_device device, int index) const override;
    void set_timeout(Seconds timeout) override { timeout_ = timeout; }

    void all_gather(const void *mine, void *all, std::size_t bytes) override;
    bool can_gather(Device &device, void *stream) const override { return !is_capturing(device, stream); }

    void begin(const Batch &batch, Device &device, void *stream) override;
    void finish(const Batch &batch, Device &device, void *stream) override;

    void abort() noexcept override { break_with(Error(ANNULUS_ERROR_COMM, "aborted by annulus_comm_abort")); }

  private:
    // What the GPU was given between two events. The clock starts when it comes to it.
    struct Work {
        Event begun = make_event(), ended = make_event();
        std::optional<Deadline> deadline;
    };

    // Runs a part of the public interface; a failure in it breaks the transport.
    template <class Part> void run(Part part);
    // Throws the first error where there was one.
    void check_whole();
    // Keeps the first error and has the watching thread abort the communicator.
    void break_with(const Error &error) noexcept;
    [[noreturn]] void throw_late() const {
        throw Error(ANNULUS_ERROR_COMM, "another rank did not come within %g s", timeout_.load().count());
    }

    // The communicator for this thread alone. Throws where the transport is broken: aborting may take long.
    std::unique_lock<std::mutex> lock_comm();
    // Calls NCCL and waits until that has reached the GPU.
    template <class Call> void call(Call part);
    // Waits for NCCL and then until ready(), but no longer than the timeout for other ranks.
    template <class Ready> void await(Ready ready);

    // Room for what all ranks give.
    void reserve(std::size_t bytes);

    // Hands over to the watching thread.
    void watch(Work work);
    // Whether the GPU has not come to the end of what it was given.
    bool is_working();

    // The watching thread.
    void watch_all() noexcept;
    bool wait_for_work();
    // Throws where the oldest work is late.
    void look_after_work();
    // Ends a whole communicator, once there is no other thread; waits for its last work, but not long.
    void close() noexcept;

    int size_ = 0, rank_ = 0, device_ = 0;
    const bool owned_;
    std::atomic<Seconds> timeout_;

    // For all_gather(): what all ranks give, on the host and on the device.
    Stream stream_;
    Event gathered_;
    PinnedBytes host_;
    DeviceBytes memory_;
    std::size_t capacity_ = 0;
    std::vector<std::int64_t> times_; // that the ranks' last parts carried

    std::mutex comm_mutex_; // around all calls of NCCL
    ncclComm_t comm_;       // null once it is aborted

    // May be locked while comm_mutex_ is, not the other way round.
    std::mutex state_mutex_;
    std::condition_variable state_changed_;
    std::optional<Error> failure_;
    bool stop_ = false;
    std::deque<Work> works_; // oldest first, which is the order in which NCCL does them

    std::thread watcher_; // last: it uses the rest
};

NcclTransport::NcclTransport(ncclComm_t comm, bool owned, Seconds timeout)
    : owned_(owned), timeout_(timeout), comm_(comm) {
    check(nccl().comm_count(comm, &size_), "ncclCommCount");
    check(nccl().comm_user_rank(comm, &rank_), "ncclCommUserRank");
    check(nccl().comm_cu_device(comm, &device_), "ncclCommCuDevice");
    const OnDevice on_device(device_);
    stream_ = make_stream();
    gathered_ = make_event();
    reserve(usual_gather_bytes * size_);
    times_.resize(size_);
    watcher_ = std::thread(&NcclTransport::watch_all, this);
}

NcclTransport::~NcclTransport() {
    {
        const std::lock_guard lock(state_mutex_);
        stop_ = true;
    }
    state_changed_.notify_all();
    watcher_.join();
    const CurrentDevice current(device_);
    if (comm_ && owned_)
        close();
    works_.clear();
    cudaStreamSynchronize(stream_.get()); // an aborted gather may just be ending
    host_.reset();
    memory_.reset();
    gathered_.reset();
    stream_.reset();
}

void NcclTransport::close() noexcept {
    const Deadline deadline(closing_time);
    ncclResult_t state = nccl().comm_finalize(comm_);
    for (Pause pause; state == ncclInProgress && !deadline.passed(); pause())
        if (const ncclResult_t result = nccl().comm_get_async_error(comm_, &state); result != ncclSuccess)
            state = result;
    if (state == ncclSuccess)
        nccl().comm_destroy(comm_);
    else
        nccl().comm_abort(comm_);
}

void NcclTransport::check_device(annulus_device device, int index) const {
    if (device != ANNULUS_DEVICE_CUDA)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "comm is an NCCL communicator; the context must be on a CUDA device");
    if (index != device_)
        throw Error(ANNULUS_ERROR_ARGUMENT, "comm is on CUDA device %d; it must be on the context's, CUDA device %d",
                    device_, index);
}

template <class Part> void NcclTransport::run(Part part) {
    check_whole();
    try {
        const OnDevice on_device(device_);
        const BesideCaptures beside_captures;
        part();
    } catch (const Error &error) {
        break_with(error);
    } catch (const std::bad_alloc &) {
        break_with(Error(ANNULUS_ERROR_MEMORY, "out of memory"));
    }
    check_whole();
}

void NcclTransport::check_whole() {
    const std::lock_guard lock(state_mutex_);
    if (failure_)
        throw *failure_;
}

void NcclTransport::break_with(const Error &error) noexcept {
    {
        const std::lock_guard lock(state_mutex_);
        if (!failure_)
            failure_ = error;
    }
    state_changed_.notify_all();
}

std::unique_lock<std::mutex> NcclTransport::lock_comm() {
    std::unique_lock lock(comm_mutex_, std::defer_lock);
    for (Pause pause; !lock.try_lock(); pause())
        check_whole();
    check_whole();
    return lock;
}

template <class Call> void NcclTransport::call(Call part) {
    {
        const auto lock = lock_comm();
        part();
    }
    await([] { return true; });
}

// Where NCCL has to wait for the GPU to come to the end of earlier work, that is no other rank's fault, or one for
// which the watching thread is there.
template <class Ready> void NcclTransport::await(Ready ready) {
    Deadline deadline(timeout_);
    const auto is_over = [&] {
        const auto lock = lock_comm();
        return is_ready(comm_) && ready();
    };
    for (Pause pause; !is_over(); pause()) {
        if (is_working())
            deadline = Deadline(timeout_);
        else if (deadline.passed())
            throw_late();
    }
}

void NcclTransport::reserve(std::size_t bytes) {
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

void NcclTransport::all_gather(const void *mine, void *all, std::size_t bytes) {
    run([&] {
        // NCCL's kernel on a rank that aborts lets those of its neighbours go on with what their buffers held before,
        // so that they seem to have heard from all. So a rank's parts carry a time, and each is later than the one
        // before.
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
            check(nccl().all_gather(memory + offset, memory, part_bytes, ncclUint8, comm_, stream_.get()),
                  "ncclAllGather");
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
    });
}

void NcclTransport::begin(const Batch &batch, Device &device, void *stream) {
    if (batch.empty())
        return check_whole();
    const auto cuda_stream = static_cast<cudaStream_t>(stream);
    run([&] {
        // In a graph, events tell nothing of when it will run.
        std::optional<Work> work;
        if (!is_capturing(device, stream)) {
            work.emplace();
            check(cudaEventRecord(work->begun.get(), cuda_stream), "cudaEventRecord");
        }
        call([&] {
            Group group;
            for (const Transfer &send : batch.sends)
                group.add(nccl().send(send.data, send.bytes, ncclUint8, send.peer, comm_, cuda_stream), "ncclSend");
            for (const Transfer &receive : batch.receives)
                group.add(nccl().recv(receive.data, receive.bytes, ncclUint8, receive.peer, comm_, cuda_stream),
                          "ncclRecv");
            group.end();
        });
        if (work) {
            check(cudaEventRecord(work->ended.get(), cuda_stream), "cudaEventRecord");
            watch(std::move(*work));
        }
    });
}

// All of the batch is in the stream since begin().
void NcclTransport::finish(const Batch &, Device &, void *) {
    run([&] {
        const auto lock = lock_comm();
        is_ready(comm_);
    });
}

void NcclTransport::watch(Work work) {
    {
        const std::lock_guard lock(state_mutex_);
        works_.push_back(std::move(work));
    }
    state_changed_.notify_all();
}

bool NcclTransport::is_working() {
    const std::lock_guard lock(state_mutex_);
    return !works_.empty() && !is_done(works_.back().ended);
}

// Aborts here and nowhere else: NCCL returns from that only when it has taken everything down, graphs that captured its
// work included, and whoever met the failure need not wait for it.
void NcclTransport::watch_all() noexcept {
    const CurrentDevice current(device_);
    const BesideCaptures beside_captures;
    while (wait_for_work())
        try {
            look_after_work();
            const auto lock = lock_comm();
            is_ready(comm_);
        } catch (const Error &error) {
            break_with(error);
        }
    const std::lock_guard lock(comm_mutex_);
    if (failure_)
        nccl().comm_abort(std::exchange(comm_, nullptr));
}

// Returns false when there is nothing left to watch.
bool NcclTransport::wait_for_work() {
    std::unique_lock lock(state_mutex_);
    const auto is_over = [&] { return stop_ || failure_; };
    state_changed_.wait(lock, [&] { return is_over() || !works_.empty(); });
    return !state_changed_.wait_for(lock, watch_interval, is_over);
}

void NcclTransport::look_after_work() {
    const std::lock_guard lock(state_mutex_);
    while (!works_.empty() && is_done(works_.front().ended))
        works_.pop_front();
    if (works_.empty())
        return;
    Work &work = works_.front();
    if (!work.deadline && is_done(work.begun))
        work.deadline.emplace(timeout_);
    if (work.deadline && work.deadline->passed())
        throw_late();
}

void check_device_index(const char *name, int device) {
    const int count = cuda_device_count();
    if (count == 0)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no CUDA device");
    if (device < 0 || device >= count)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %d; it must be from 0 to %d", name, device, count - 1);
}

// Communicators that no transport has yet.
struct NewCommunicators {
    std::vector<ncclComm_t> handles;

    explicit NewCommunicators(std::size_t count) : handles(count) {}
    ~NewCommunicators() {
        for (ncclComm_t comm : handles)
            if (comm)
                nccl().comm_abort(comm);
    }
    NewCommunicators(const NewCommunicators &) = delete;
    NewCommunicators &operator=(const NewCommunicators &) = delete;

    bool are_ready() const { return std::all_of(handles.begin(), handles.end(), is_ready); }
};

// The ranks of this process, the first of which is `first_rank`, on a device each.
std::vector<std::unique_ptr<Transport>> connect(const annulus_nccl_id &id, int ranks, int first_rank,
                                                const std::vector<int> &devices, Transport::Seconds timeout) {
    ncclUniqueId nccl_id;
    std::memcpy(&nccl_id, &id, sizeof nccl_id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const Deadline deadline(timeout);
    NewCommunicators comms(devices.size());
    Group group;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        const OnDevice on_device(devices[i]);
        const int rank = first_rank + static_cast<int>(i);
        group.add(nccl().comm_init_rank_config(&comms.handles[i], ranks, nccl_id, rank, &config),
                  "ncclCommInitRankConfig");
    }
    group.end();
    for (Pause pause; !comms.are_ready(); pause())
        if (deadline.passed())
            throw Error(ANNULUS_ERROR_COMM, "the other ranks of the NCCL communicator did not come within %g s",
                        deadline.seconds());
    std::vector<std::unique_ptr<Transport>> transports;
    transports.reserve(devices.size());
    for (ncclComm_t &comm : comms.handles) {
        transports.push_back(std::make_unique<NcclTransport>(comm, true, timeout));
        comm = nullptr;
    }
    return transports;
}

} // namespace

annulus_nccl_id make_nccl_id() {
    ncclUniqueId nccl_id;
    check(nccl().get_unique_id(&nccl_id), "ncclGetUniqueId");
    annulus_nccl_id id;
    static_assert(sizeof id == sizeof nccl_id);
    std::memcpy(&id, &nccl_id, sizeof id);
    return id;
}

std::vector<std::unique_ptr<Transport>> make_nccl_transports(int ranks, const int *devices) {
    std::vector<int> chosen(ranks);
    if (devices)
        std::copy_n(devices, ranks, chosen.begin());
    else
        std::iota(chosen.begin(), chosen.end(), 0);
    for (int i = 0; i < ranks; ++i) {
        check_device_index(("devices[" + std::to_string(i) + "]").c_str(), chosen[i]);
        const auto here = chosen.begin() + i;
        if (const auto first = std::find(chosen.begin(), here, *here); first != here)
            throw Error(ANNULUS_ERROR_ARGUMENT, "devices[%d] is %d, as devices[%d] is; each must be another one", i,
                        *here, static_cast<int>(first - chosen.begin()));
    }
    return connect(make_nccl_id(), ranks, 0, chosen, default_timeout);
}

std::unique_ptr<Transport> make_nccl_transport(const annulus_nccl_id &id, int ranks, int rank, int device,
                                               Transport::Seconds timeout) {
    check_device_index("device", device);
    return std::move(connect(id, ranks, rank, {device}, timeout).front());
}

std::unique_ptr<Transport> borrow_nccl_transport(void *nccl_comm) {
    return std::make_unique<NcclTransport>(static_cast<ncclComm_t>(nccl_comm), false, default_timeout);
}

} // namespace annulus
