// SPDX-License-Identifier: Apache-2.0
// Tests the memory checks themselves: results do not depend on the tensors' place in memory, and a write to a byte
// outside the outputs is found.
#include "engines/table.hpp"

#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace annulus::test {
namespace {

// Host memory in which one byte changes just before it is downloaded.
class FaultyMemory final : public Memory {
  public:
    // download: in which download, counted from 0, the byte changes; byte: its offset.
    FaultyMemory(int download, std::ptrdiff_t byte) : countdown_(download), byte_(byte) {}

    annulus_device device() const override { return host_memory().device(); }
    void *allocate(std::size_t bytes) override { return host_memory().allocate(bytes); }
    void release(void *data) noexcept override { host_memory().release(data); }
    void fill(void *data, unsigned char value, std::size_t bytes) override { host_memory().fill(data, value, bytes); }
    void upload(void *to, const void *from, std::size_t bytes) override { host_memory().upload(to, from, bytes); }
    void download(void *to, const void *from, std::size_t bytes) override {
        host_memory().download(to, from, bytes);
        if (countdown_-- == 0)
            static_cast<unsigned char *>(to)[byte_ < 0 ? static_cast<std::ptrdiff_t>(bytes) + byte_ : byte_] ^= 1;
    }

  private:
    int countdown_;
    std::ptrdiff_t byte_;
};

const Problem problem = {.length = 20, .layout = Layout::gaps, .dtype = ANNULUS_FLOAT32};
const Inputs inputs = random_inputs(problem, 1);

std::string complaint(int download, std::ptrdiff_t byte) {
    FaultyMemory memory(download, byte);
    try {
        run(problem, inputs, {.memory = &memory});
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    return "none";
}

// The order of downloads after each pass: the two guards of the workspace, then the tensors in the order of
// Call::Arguments.
enum Download { workspace_front, workspace_back, q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v, mass, count };

constexpr std::ptrdiff_t guard = 128 + sizeof(float); // GuardedMemory's, before and after the elements
constexpr std::ptrdiff_t gap = guard + 8 * sizeof(float);

TEST(Memory, SoundRunsHaveNoComplaint) {
    EXPECT_EQ(complaint(2 * count, 0), "none");
}

TEST(Memory, ChangesOutsideTheElementsShow) {
    for (const std::ptrdiff_t byte : {std::ptrdiff_t{0}, guard - 1, gap, -guard, std::ptrdiff_t{-1}}) {
        SCOPED_TRACE(byte);
        EXPECT_EQ(complaint(q, byte), "written outside the elements of q");
        EXPECT_EQ(complaint(out, byte), "written outside the elements of out");
        EXPECT_EQ(complaint(count + d_q, byte), "written outside the elements of d_q");
        EXPECT_EQ(complaint(count + d_v, byte), "written outside the elements of d_v");
        EXPECT_EQ(complaint(mass, byte), "written outside the elements of mass");
    }
    EXPECT_EQ(complaint(workspace_front, 64), "written outside the workspace");
    EXPECT_EQ(complaint(count + workspace_back, 0), "written outside the workspace");
}

TEST(Memory, ChangedInputsShow) {
    EXPECT_EQ(complaint(k, guard), "the call changed its input k");
    EXPECT_EQ(complaint(v, guard), "the call changed its input v");
    EXPECT_EQ(complaint(count + d_out, guard), "the call changed its input d_out");
    EXPECT_EQ(complaint(count + d_lse, guard), "the call changed its input d_lse");
    EXPECT_EQ(complaint(count + out, guard), "the call changed its input out");
    EXPECT_EQ(complaint(count + lse, guard), "the call changed its input lse");
}

TEST(Memory, AlignmentAndOwnMemoryDoNotChangeResults) {
    for (const Layout layout : {Layout::rows, Layout::heads_first, Layout::gaps, Layout::packed}) {
        Problem laid = mixed_problem(ANNULUS_BFLOAT16);
        laid.layout = layout;
        const Inputs values = random_inputs(laid, 2);
        const Results wanted = run(laid, values);
        expect_identical(run(laid, values, {.aligned = true}), wanted);
        expect_identical(run(laid, values, {.own_workspace = false}), wanted);
    }
}

TEST(Memory, AlignedElementsBeginAtMultiplesOf256) {
    Problem laid = problem;
    for (const Layout layout : {Layout::rows, Layout::heads_first, Layout::gaps, Layout::packed}) {
        laid.layout = layout;
        const Call aligned(laid, inputs, host_memory(), true), odd(laid, inputs, host_memory());
        const auto address = [](const annulus_tensor &tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data); };
        EXPECT_EQ(address(aligned.arguments.q) % 256, 0);
        EXPECT_EQ(address(aligned.arguments.lse) % 256, 0);
        EXPECT_EQ(address(odd.arguments.q) % (2 * sizeof(float)), sizeof(float));
        EXPECT_EQ(address(odd.arguments.lse) % (2 * sizeof(float)), sizeof(float));
    }
}

} // namespace
} // namespace annulus::test
