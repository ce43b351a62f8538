// SPDX-License-Identifier: Apache-2.0
// The order between streams when the sequences that a rank has alone run beside the sequences that it shares. The
// device and the engine only record what they are told to do.
#include "cpu/cpu_device.hpp"
#include "ranks/distributed_executable.hpp"

#include "support/plan.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace annulus::test {
namespace {

int stream_names[3];
void *const call_stream = stream_names, *const comm_stream_name = stream_names + 1, *const side = stream_names + 2;

// A stream waits for what another stream has been given, or is given an executable's work.
struct Entry {
    enum Kind { wait, alone, own_keys, received_keys, outputs } kind;
    void *stream;
    void *other;     // of a wait: the other stream
    void *workspace; // of an executable
};

// What the streams were told, in order.
std::vector<Entry> entries;
std::optional<Entry::Kind> failing; // the executable that throws

class RecordingDevice : public CpuDevice, public DeviceStreams {
  public:
    DeviceStreams *streams() override { return this; }
    void *comm_stream() override { return comm_stream_name; }
    void *side_stream() override { return side; }
    void *record(void *stream) override { return &recorded_.emplace_back(stream); }
    void wait(void *stream, void *event) override {
        entries.push_back({Entry::wait, stream, *static_cast<void **>(event), nullptr});
    }
    void admit_peers() override {}
    bool is_capturing(void *) const override { return false; }

  private:
    std::deque<void *> recorded_;
};

class RecordingExecutable : public Executable {
  public:
    static constexpr std::size_t bytes = 1000;

    explicit RecordingExecutable(Entry::Kind kind) : kind_(kind) {}
    std::size_t workspace_bytes() const override { return bytes; }
    void run(const CallTensors &, const PartialResults &, void *workspace, void *stream) override {
        entries.push_back({kind_, stream, nullptr, workspace});
        if (failing == kind_)
            throw Error(ANNULUS_ERROR_DEVICE, "meant to fail");
    }
    void write_unfinished(const CallTensors &, const PartialResults &, void *stream) override {
        entries.push_back({Entry::outputs, stream, nullptr, nullptr});
    }

  private:
    Entry::Kind kind_;
};

Preparation prepare(const Plan &, annulus_pass, KeyScope scope, Device &, const Limits &) {
    return {std::make_unique<RecordingExecutable>(has_other_keys(scope) ? Entry::received_keys : Entry::own_keys)};
}

Preparation prepare_alone(const SequencePlans &, annulus_pass, Device &, const Limits &) {
    return {std::make_unique<RecordingExecutable>(Entry::alone)};
}

Engine recording_engine(bool runs_side_by_side) {
    return {.id = ANNULUS_ENGINE_FUSED,
            .device = ANNULUS_DEVICE_CUDA,
            .has_key_scopes = true,
            .prepare = prepare,
            .clear = nullptr,
            .prepare_sequences = prepare_alone,
            .runs_side_by_side = runs_side_by_side};
}

// Rank 0 of two, whose messages go nowhere.
class DeafTransport final : public Transport {
  public:
    bool is_aborted = false;

    int size() const override { return 2; }
    int rank() const override { return 0; }
    void check_device(annulus_device, int) const override {}
    void set_timeout(Seconds) override {}
    void all_gather(const void *, void *, std::size_t) override {}
    bool can_gather(Device &, void *) const override { return true; }
    void begin(const Batch &batch, Device &, void *) override { batch.write_sends(); }
    void finish(const Batch &, Device &, void *) override {}
    void abort() noexcept override { is_aborted = true; }
    std::optional<Error> failure() const override { return std::nullopt; }
};

class DeafCopier final : public MessageCopier {
    void fill(const std::vector<MessageTable> &, const Plan &, void *) override {}
    void pack(const RowMove &, void *) override {}
    void unpack(const RowMove &, void *) override {}
    void add(const RowMove &, void *) override {}
};

constexpr std::int64_t rows = 50;

annulus_tensor tensor_of(std::vector<float> &values) {
    values.assign(static_cast<std::size_t>(rows * 8), 0);
    return {values.data(), ANNULUS_FLOAT32, 4, {1, rows, 1, 8}, {rows * 8, 8, 8, 1}};
}

// Rank 0 has a document of 30 rows alone, and 20 of the 70 rows of a document that it shares.
struct Rank {
    RankPlan plan{pattern_of(documents()),   {plan_problem_of(documents()), {{0, 1, {0, 30}}, {0, 1, {30, 70}}}},
                  make_shards({rows, rows}), 0,
                  ANNULUS_EXCHANGE_GATHER,   call_planning_steps};
    RecordingDevice device;
    DeafTransport transport;
    DeafCopier copier;

    static Problem documents() {
        return in_documents({.heads = 1, .dim = 8, .branches = {{}}, .dtype = ANNULUS_FLOAT32}, {30, 70});
    }

    std::unique_ptr<Executable> prepare(const Engine &engine, std::uint64_t limit = 0) {
        return prepare_distributed(plan, ANNULUS_PASS_FORWARD, engine, device, {.workspace_limit = limit},
                                   {&transport, &copier})
            .executable;
    }

    // Runs with as much workspace as the executable asks for. Returns the entries.
    std::vector<Entry> run(Executable &executable) {
        entries.clear();
        std::vector<std::vector<float>> memory(4);
        const CallTensors tensors{tensor_of(memory[0]), tensor_of(memory[1]), tensor_of(memory[2]),
                                  tensor_of(memory[3])};
        workspace.resize(executable.workspace_bytes());
        executable.run(tensors, {}, workspace.data(), call_stream);
        return entries;
    }
    std::vector<std::byte> workspace;
};

std::size_t index_of(Entry::Kind kind) {
    return static_cast<std::size_t>(std::ranges::find(entries, kind, &Entry::kind) - entries.begin());
}

// Returns the index of the last time that a stream waits for another one; the number of entries if it never does.
std::size_t last_wait(void *stream, void *other) {
    for (std::size_t i = entries.size(); i-- > 0;)
        if (entries[i].kind == Entry::wait && entries[i].stream == stream && entries[i].other == other)
            return i;
    return entries.size();
}

void expect_inside(const Rank &rank, void *workspace) {
    const auto *const begin = static_cast<const std::byte *>(workspace);
    EXPECT_GE(begin, rank.workspace.data());
    EXPECT_LE(begin + RecordingExecutable::bytes, rank.workspace.data() + rank.workspace.size());
}

TEST(SideStream, HasWhatARankComputesAlone) {
    const Engine engine = recording_engine(true);
    Rank rank;
    rank.run(*rank.prepare(engine));
    ASSERT_EQ(std::ranges::count(entries, Entry::alone, &Entry::kind), 1);
    const Entry alone = entries[index_of(Entry::alone)], own = entries[index_of(Entry::own_keys)];
    EXPECT_EQ(alone.stream, side);
    for (const Entry::Kind kind : {Entry::own_keys, Entry::received_keys, Entry::outputs})
        EXPECT_EQ(entries[index_of(kind)].stream, call_stream) << kind;
    // It waits for the work before the call, not for the keys of shared sequences. In the end the call waits for it.
    EXPECT_LT(last_wait(side, call_stream), index_of(Entry::own_keys));
    EXPECT_LT(index_of(Entry::alone), last_wait(call_stream, side));
    EXPECT_LT(last_wait(call_stream, side), entries.size());
    // Neither executable may write to the other's workspace.
    expect_inside(rank, alone.workspace);
    expect_inside(rank, own.workspace);
    EXPECT_GE(std::abs(static_cast<std::byte *>(alone.workspace) - static_cast<std::byte *>(own.workspace)),
              static_cast<std::ptrdiff_t>(RecordingExecutable::bytes));
}

// The call's memory may be freed after a failure, in the order of the call's stream.
TEST(SideStream, IsWaitedForAfterAFailure) {
    const Engine engine = recording_engine(true);
    for (const Entry::Kind kind : {Entry::own_keys, Entry::alone, Entry::received_keys}) {
        Rank rank;
        const std::unique_ptr<Executable> executable = rank.prepare(engine);
        failing = kind;
        EXPECT_THROW(rank.run(*executable), Error);
        failing.reset();
        EXPECT_TRUE(rank.transport.is_aborted);
        EXPECT_LT(index_of(kind), last_wait(call_stream, side));
        EXPECT_LT(last_wait(call_stream, side), entries.size()) << kind;
    }
}

// Without room for two workspaces, or with an engine that gains nothing, there is one after the other.
TEST(SideStream, IsIdleIfExecutablesShareTheWorkspace) {
    const Engine beside = recording_engine(true), in_turn = recording_engine(false);
    Rank rank;
    const std::uint64_t bytes = rank.prepare(beside)->workspace_bytes();
    for (const Engine *const engine : {&beside, &in_turn}) {
        const std::unique_ptr<Executable> executable = rank.prepare(*engine, engine == &beside ? bytes - 1 : 0);
        EXPECT_LT(executable->workspace_bytes(), bytes);
        rank.run(*executable);
        EXPECT_EQ(entries[index_of(Entry::alone)].stream, call_stream);
        EXPECT_EQ(entries[index_of(Entry::alone)].workspace, entries[index_of(Entry::own_keys)].workspace);
        expect_inside(rank, entries[index_of(Entry::alone)].workspace);
        EXPECT_EQ(last_wait(side, call_stream), entries.size());
        EXPECT_EQ(last_wait(call_stream, side), entries.size());
    }
}

} // namespace
} // namespace annulus::test
