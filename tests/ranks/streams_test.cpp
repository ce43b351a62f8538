// SPDX-License-Identifier: Apache-2.0
// The order of a rank's work on two streams. A device here only notes what its streams are given. Then the work of all
// ranks runs in a random order that the streams and their events allow. Each piece of work is the CPU engine's, so a
// missing event gives wrong results.
#include "cpu/blocked/engine.hpp"
#include "cpu/cpu_device.hpp"
#include "cpu/message_copier.hpp"
#include "cpu/reference/engine.hpp"
#include "ranks/distributed_executable.hpp"

#include "support/plan.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

struct Work {
    std::function<void()> run;
    std::function<bool()> is_ready = [] { return true; };
};

class NotingDevice final : public CpuDevice, public DeviceStreams {
  public:
    DeviceStreams *streams() override { return this; }
    void *stream() { return &queues[0]; }
    void *comm_stream() override { return &queues[1]; }
    void *record(void *stream) override {
        bool *const event = &events_.emplace_back(false);
        queue(stream).push_back({[event] { *event = true; }});
        return event;
    }
    void wait(void *stream, void *event) override {
        follows_launch_.erase(stream);
        queue(stream).push_back({[] {}, [event] { return *static_cast<bool *>(event); }});
    }
    void admit_peers() override {}
    bool is_capturing(void *) const override { return false; }
    void copy(void *to, const void *from, std::size_t bytes, void *stream) override {
        add(stream, [=] { std::memcpy(to, from, bytes); });
    }

    void add(void *stream, std::function<void()> run) {
        follows_launch_.erase(stream);
        queue(stream).push_back({std::move(run)});
    }
    // Adds launches. `begins_early`: the first one may begin before the launch before it ends.
    void add_launches(void *stream, bool begins_early, std::function<void()> run) {
        EXPECT_TRUE(!begins_early || follows_launch_.contains(stream));
        early_launches += begins_early;
        queue(stream).push_back({std::move(run)});
        follows_launch_.insert(stream);
    }

    std::array<std::deque<Work>, 2> queues;
    std::map<void *, bool> has_statistics; // by the rows of Q
    int early_launches = 0;

  private:
    static std::deque<Work> &queue(void *stream) { return *static_cast<std::deque<Work> *>(stream); }

    std::deque<bool> events_;
    std::set<void *> follows_launch_; // streams whose last work were launches; a recorded event does not matter
};

// Returns a tensor of the same shape with other memory, which is 0.
annulus_tensor zeros_like(const annulus_tensor &tensor, std::vector<float> &memory) {
    annulus_tensor zeros = tensor;
    std::int64_t elements = 1;
    for (int i = 0; i < tensor.ndim; ++i)
        elements += std::max<std::int64_t>(tensor.shape[i] - 1, 0) * tensor.stride[i];
    memory.assign(static_cast<std::size_t>(elements), 0);
    zeros.data = memory.data();
    return zeros;
}

// Runs the CPU's executable twice, as run() and run_rest(), each time for some gradients.
class NotedExecutable final : public Executable {
  public:
    NotedExecutable(const Plan &plan, annulus_pass pass, KeyScope scope, NotingDevice &device, const Limits &limits)
        : pass_(pass), scope_(scope), device_(device),
          executable_(cpu_engine.prepare(plan, pass, scope, device, limits).executable),
          rows_(plan.problem().batch * plan.problem().kv_heads * plan.problem().key_rows() * plan.problem().head_dim) {}

    std::size_t workspace_bytes() const override { return executable_->workspace_bytes(); }
    bool runs_beside_others() const override { return true; }
    void begin(const CallTensors &tensors, const PartialResults &, void *, void *stream) override {
        *has_begun_ = false;
        began_ = true;
        device_.add(stream, [this, q = tensors.q.data, begun = has_begun_] {
            *begun = true;
            if (scope_ == KeyScope::own_keys)
                device_.has_statistics[q] = true;
        });
    }
    void let_begin_early() override { begins_early_ = true; }

    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override {
        const bool is_own = scope_ == KeyScope::own_keys;
        add(tensors, partial, workspace, stream, !leaves_rest() || is_own, !leaves_rest() || !is_own);
    }
    void run_rest(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override {
        const bool is_own = scope_ == KeyScope::own_keys;
        if (leaves_rest())
            add(tensors, partial, workspace, stream, !is_own, is_own);
    }
    void write_unfinished(const CallTensors &tensors, const PartialResults &partial, void *stream) override {
        device_.add(stream, [=, this] { executable_->write_unfinished(tensors, partial, nullptr); });
    }

  private:
    bool leaves_rest() const { return pass_ == ANNULUS_PASS_BACKWARD && scope_ != KeyScope::all_keys; }

    // Adds launches for dQ, for dK and dV, or for all results.
    void add(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream, bool finds_dq,
             bool finds_dk_and_dv) {
        device_.add_launches(stream, std::exchange(begins_early_, false), [=, this] {
            EXPECT_TRUE(!began_ || *has_begun_);
            const bool needs_statistics = pass_ == ANNULUS_PASS_BACKWARD && began_ && has_other_keys(scope_);
            EXPECT_TRUE(!needs_statistics || device_.has_statistics[tensors.q.data]);
            CallTensors written = tensors;
            PartialResults sums = partial;
            std::vector<float> no_dq, no_dk, no_dv;
            if (!finds_dq)
                written.d_q = zeros_like(tensors.d_q, no_dq);
            if (!finds_dk_and_dv) {
                written.d_k = zeros_like(tensors.d_k, no_dk);
                written.d_v = zeros_like(tensors.d_v, no_dv);
                for (const auto &[sum, memory] : {std::pair(&sums.d_k, &no_dk), std::pair(&sums.d_v, &no_dv)})
                    if (*sum) {
                        memory->assign(static_cast<std::size_t>(rows_), 0);
                        *sum = memory->data();
                    }
            }
            executable_->run(written, sums, workspace, nullptr);
        });
    }

    const annulus_pass pass_;
    const KeyScope scope_;
    NotingDevice &device_;
    const std::unique_ptr<Executable> executable_;
    const std::int64_t rows_;
    const std::shared_ptr<bool> has_begun_ = std::make_shared<bool>(false);
    bool began_ = false, begins_early_ = false;
};

Preparation prepare(const Plan &plan, annulus_pass pass, KeyScope scope, Device &device, const Limits &limits) {
    return {std::make_unique<NotedExecutable>(plan, pass, scope, static_cast<NotingDevice &>(device), limits)};
}

const Engine engine{.id = ANNULUS_ENGINE_CPU,
                    .device = ANNULUS_DEVICE_CPU,
                    .has_key_scopes = true,
                    .prepare = prepare,
                    .clear = nullptr,
                    .summed_rows = cpu_engine.summed_rows,
                    .sums_in_place = true};

class NotingCopier final : public MessageCopier {
  public:
    explicit NotingCopier(NotingDevice &device) : device_(device) {}
    void fill(const std::vector<MessageTable> &tables, const Plan &plan, void *stream) override {
        device_.add(stream, [=, this, &plan] { copier_->fill(tables, plan, nullptr); });
    }
    void pack(const RowMove &move, void *stream) override {
        device_.add(stream, [=, this] { copier_->pack(move, nullptr); });
    }
    void unpack(const RowMove &move, void *stream) override {
        device_.add(stream, [=, this] { copier_->unpack(move, nullptr); });
    }
    void add(const RowMove &move, void *stream) override {
        device_.add(stream, [=, this] { copier_->add(move, nullptr); });
    }

  private:
    NotingDevice &device_;
    const std::unique_ptr<MessageCopier> copier_ = make_cpu_message_copier();
};

// The messages from one rank to another, in their order. Each is copied when both its ends have come to it.
using Mailboxes = std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>>;

class NotingTransport final : public Transport {
  public:
    NotingTransport(int ranks, int rank, bool copies, NotingDevice &device, Mailboxes &boxes)
        : ranks_(ranks), rank_(rank), copies_(copies), device_(device), boxes_(boxes) {}
    int size() const override { return ranks_; }
    int rank() const override { return rank_; }
    void check_device(annulus_device, int) const override {}
    bool copies_between_devices() const override { return copies_; }
    void set_timeout(Seconds) override {}
    void all_gather(const void *, void *, std::size_t) override {}
    bool can_gather(Device &, void *) const override { return true; }
    void begin(const Batch &batch, Device &, void *stream) override {
        batch.write_sends();
        for (const Transfer &send : batch.sends)
            device_.add(stream, [send, &box = boxes_[{rank_, send.peer}]] {
                const auto *const data = static_cast<const std::byte *>(send.data);
                box.emplace_back(data, data + send.bytes);
            });
    }
    void finish(const Batch &batch, Device &, void *stream) override {
        for (const Transfer &receive : batch.receives) {
            auto &box = boxes_[{receive.peer, rank_}];
            device_.add(stream, [receive, &box] {
                ASSERT_EQ(box.front().size(), receive.bytes);
                std::ranges::copy(box.front(), static_cast<std::byte *>(receive.data));
                box.pop_front();
            });
            static_cast<std::deque<Work> *>(stream)->back().is_ready = [&box] { return !box.empty(); };
        }
    }
    void abort() noexcept override {}
    std::optional<Error> failure() const override { return std::nullopt; }

  private:
    const int ranks_, rank_;
    const bool copies_;
    NotingDevice &device_;
    Mailboxes &boxes_;
};

constexpr int heads = 2, dim = 8;

// The tensors of some rows. Results begin as numbers that a missing write would leave.
struct Rows {
    std::vector<float> values[8], lse;
    annulus_tensor statistic{};
    CallTensors tensors{};

    Rows(std::int64_t start, std::int64_t rows, const std::vector<std::vector<float>> &inputs, const Rows *whole) {
        const auto tensor = [&](int i) {
            std::vector<float> &memory = values[i];
            memory.assign(static_cast<std::size_t>(rows * heads * dim + 1), 7);
            if (const auto *const from = i < 4 ? &inputs[i] : i == 4 && whole ? &whole->values[4] : nullptr)
                std::copy_n(from->begin() + start * heads * dim, rows * heads * dim, memory.begin());
            return annulus_tensor{
                memory.data(), ANNULUS_FLOAT32, 4, {1, rows, heads, dim}, {rows * heads * dim, heads * dim, dim, 1}};
        };
        lse.assign(static_cast<std::size_t>(rows * heads + 1), 7);
        if (whole)
            for (int head = 0; head < heads; ++head)
                std::copy_n(whole->lse.begin() + head * whole->statistic.shape[2] + start, rows,
                            lse.begin() + head * rows);
        statistic = {lse.data(), ANNULUS_FLOAT32, 3, {1, heads, rows}, {heads * rows, rows, 1}};
        tensors = {tensor(0), tensor(1), tensor(2), tensor(4), &statistic};
        tensors.d_out = tensor(3);
        tensors.d_q = tensor(5);
        tensors.d_k = tensor(6);
        tensors.d_v = tensor(7);
    }
    Rows(const Rows &) = delete;
    Rows &operator=(const Rows &) = delete;
};

// Runs the work of all devices in a random order. Returns false if work is left that can never run.
bool run_all(const std::vector<std::unique_ptr<NotingDevice>> &devices, std::mt19937_64 &generator) {
    for (;;) {
        std::vector<std::deque<Work> *> ready;
        std::size_t left = 0;
        for (const auto &device : devices)
            for (std::deque<Work> &queue : device->queues) {
                left += queue.size();
                if (!queue.empty() && queue.front().is_ready())
                    ready.push_back(&queue);
            }
        if (ready.empty())
            return left == 0;
        std::deque<Work> &queue = *ready[std::uniform_int_distribution<std::size_t>(0, ready.size() - 1)(generator)];
        queue.front().run();
        queue.pop_front();
    }
}

struct Job {
    std::vector<BranchSpec> branches;
    bool causal;
    std::vector<std::int64_t> lengths; // of shards
    std::vector<int> owners;
    annulus_exchange exchange = ANNULUS_EXCHANGE_GATHER;
};

void expect_near(const std::vector<float> &results, const std::vector<float> &expected, std::int64_t start,
                 std::int64_t rows, std::int64_t first) {
    double largest = 0;
    for (const float x : std::span(expected).first(expected.size() - 1)) // without the one beyond the rows
        largest = std::max(largest, std::abs(static_cast<double>(x)));
    for (std::int64_t i = 0; i < rows * heads * dim; ++i)
        ASSERT_NEAR(results[static_cast<std::size_t>(first * heads * dim + i)],
                    expected[static_cast<std::size_t>(start * heads * dim + i)], 1e-5 * largest)
            << "row " << start + i / (heads * dim);
}

// Runs a pass on all ranks, in an order of the seed. Returns how many launches began early.
int check(const Job &job, annulus_pass pass, bool copies, std::uint64_t seed) {
    const std::int64_t length = std::reduce(job.lengths.begin(), job.lengths.end());
    const Problem problem{.length = length,
                          .heads = heads,
                          .dim = dim,
                          .branches = job.branches,
                          .causal = job.causal,
                          .dtype = ANNULUS_FLOAT32};
    std::mt19937_64 generator(seed);
    std::vector<std::vector<float>> inputs(4);
    for (std::vector<float> &values : inputs)
        for (std::int64_t i = 0; i < length * heads * dim; ++i)
            values.push_back(std::normal_distribution<float>()(generator));
    Rows whole(0, length, inputs, nullptr);
    CpuDevice cpu;
    for (const annulus_pass each : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD}) {
        const Preparation reference = reference_engine.prepare({pattern_of(problem), plan_problem_of(problem)}, each,
                                                               KeyScope::all_keys, cpu, {});
        std::vector<std::byte> workspace(reference.executable->workspace_bytes() + 1);
        reference.executable->run(whole.tensors, {}, workspace.data(), nullptr);
    }
    const int ranks = 1 + *std::ranges::max_element(job.owners);
    const Shards shards = make_shards(job.lengths, job.owners, ranks);
    Mailboxes boxes;
    std::vector<std::unique_ptr<NotingDevice>> devices;
    std::deque<NotingTransport> transports;
    std::deque<NotingCopier> copiers;
    std::deque<RankPlan> plans;
    std::deque<Rows> rows;
    std::vector<std::vector<std::byte>> workspaces;
    std::vector<std::unique_ptr<Executable>> executables;
    std::vector<std::vector<float>> ordered(4);
    for (int rank = 0; rank < ranks; ++rank) {
        NotingDevice &device = *devices.emplace_back(std::make_unique<NotingDevice>());
        NotingTransport &transport = transports.emplace_back(ranks, rank, copies, device, boxes);
        NotingCopier &copier = copiers.emplace_back(device);
        const RankPlan &plan =
            plans.emplace_back(pattern_of(problem), CallProblem{plan_problem_of(problem), {{0, 1, {0, length}}}},
                               shards, rank, job.exchange, call_planning_steps);
        executables.push_back(prepare_distributed(plan, pass, engine, device, {}, {&transport, &copier}).executable);
        // A rank has its shards one after the other.
        std::vector<std::vector<float>> own(4);
        Rows own_whole(0, 0, inputs, nullptr);
        std::vector<float> outputs, statistics[heads];
        for (std::size_t i = 0; i < shards.pieces.size(); ++i) {
            if (shards.owners[i] != rank)
                continue;
            const Window &piece = shards.pieces[i];
            const auto append = [&](const std::vector<float> &from, std::vector<float> &to) {
                to.insert(to.end(), from.begin() + piece.start * heads * dim, from.begin() + piece.end() * heads * dim);
            };
            for (int input = 0; input < 4; ++input)
                append(inputs[input], own[input]);
            append(whole.values[4], outputs);
            for (int head = 0; head < heads; ++head)
                statistics[head].insert(statistics[head].end(), whole.lse.begin() + head * length + piece.start,
                                        whole.lse.begin() + head * length + piece.end());
        }
        const auto count = static_cast<std::int64_t>(statistics[0].size());
        Rows &mine = rows.emplace_back(0, count, own, nullptr);
        if (pass == ANNULUS_PASS_BACKWARD) {
            std::ranges::copy(outputs, mine.values[4].begin());
            for (int head = 0; head < heads; ++head)
                std::ranges::copy(statistics[head], mine.lse.begin() + head * count);
        }
        // What is not written yet must not pass for results: NaN.
        std::vector<std::byte> &workspace =
            workspaces.emplace_back(executables.back()->workspace_bytes() + Workspace::alignment, std::byte{0xff});
        void *aligned = workspace.data();
        std::size_t space = workspace.size();
        std::align(Workspace::alignment, space - Workspace::alignment, aligned, space);
        executables.back()->run(mine.tensors, {}, aligned, device.stream());
        // The caller waits for its own stream alone.
        device.add(device.stream(), [&device] { EXPECT_TRUE(device.queues[1].empty()); });
    }
    EXPECT_TRUE(run_all(devices, generator));
    for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t first = 0; // row of the shard in the rank's tensors
        for (std::size_t i = 0; i < shards.pieces.size(); ++i) {
            if (shards.owners[i] != rank)
                continue;
            const Window &piece = shards.pieces[i];
            for (int tensor = 0; tensor < 8; ++tensor)
                if (tensor == 4 ? pass == ANNULUS_PASS_FORWARD : tensor > 4 && pass == ANNULUS_PASS_BACKWARD) {
                    SCOPED_TRACE(testing::Message() << "tensor " << tensor << " of rank " << rank);
                    expect_near(rows[rank].values[tensor], whole.values[tensor], piece.start, piece.length, first);
                }
            first += piece.length;
        }
    }
    int early = 0;
    for (const auto &device : devices)
        early += device->early_launches;
    return early;
}

TEST(Streams, HaveTheEventsThatResultsNeed) {
    const std::vector<BranchSpec> dilated = {{.segment = 16, .dilation = 1}, {.segment = 64, .dilation = 3}};
    const std::vector<Job> jobs = {
        {{{}}, false, {20, 21}, {0, 1}},
        {{{}}, true, {13, 12, 11, 14}, {0, 1, 1, 0}},
        {dilated, true, {41, 38}, {0, 1}},
        {dilated, false, {30, 21, 27}, {0, 1, 2}},
        {{window_spec(9, 0)}, true, {33, 34}, {0, 1}},
        {{{}}, false, {13, 12, 11}, {0, 1, 2}, ANNULUS_EXCHANGE_RING},
        {{{}}, true, {13, 12, 11}, {0, 1, 2}, ANNULUS_EXCHANGE_RING},
        {{{}}, true, {13, 12, 11, 14}, {0, 1, 2, 0}, ANNULUS_EXCHANGE_GATHER},
        {{{}}, true, {13, 12, 11, 14}, {0, 1, 2, 0}, ANNULUS_EXCHANGE_RING},
    };
    for (const Job &job : jobs)
        for (const annulus_pass pass : {ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD})
            for (const bool copies : {false, true}) {
                int early = 0;
                for (std::uint64_t seed = 0; seed < 20; ++seed) {
                    SCOPED_TRACE(testing::Message() << "job " << &job - jobs.data() << ", pass " << pass << ", copies "
                                                    << copies << ", seed " << seed);
                    early += check(job, pass, copies, seed);
                    if (HasFailure())
                        return;
                }
                // With one round, launches over several sets of received keys follow one another, and those for the
                // own keys follow if messages need no kernel.
                if (pass == ANNULUS_PASS_BACKWARD && job.exchange == ANNULUS_EXCHANGE_RING && !job.causal) {
                    EXPECT_EQ(early, 0);
                } else if (pass == ANNULUS_PASS_BACKWARD && copies && job.exchange == ANNULUS_EXCHANGE_GATHER &&
                           job.branches.size() == 1) {
                    EXPECT_GE(early, 20);
                }
            }
}

} // namespace
} // namespace annulus::test
