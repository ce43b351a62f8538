// SPDX-License-Identifier: Apache-2.0
// Which engine a call gets, and which workspace is announced if several engines may get the call. The engines here
// stand for a GPU's.
#include "call/call_memory.hpp"
#include "call/executable_cache.hpp"
#include "core/error.hpp"
#include "cpu/cpu_device.hpp"
#include "engine/backend.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace annulus {

namespace {

// An executable that takes tensors whose rows begin at multiples of `alignment` bytes, and computes nothing.
template <std::size_t bytes, std::int64_t alignment> class IdleExecutable final : public Executable {
  public:
    std::size_t workspace_bytes() const override { return bytes; }
    std::int64_t row_alignment() const override { return alignment; }
    const char *tensor_refusal(const CallTensors &t) const override {
        return reinterpret_cast<std::uintptr_t>(t.q.data) % alignment == 0 ? nullptr : "its rows are not aligned";
    }
    void run(const CallTensors &, const PartialResults &, void *, void *) override {}
};

template <std::size_t bytes, std::int64_t alignment>
Preparation prepare_idle(const Plan &plan, annulus_pass, KeyScope, Device &, const Limits &) {
    if (plan.problem().head_dim > 64 && alignment > 1)
        return {nullptr, "its heads are too wide"};
    return {std::make_unique<IdleExecutable<bytes, alignment>>(), nullptr};
}

// As on a GPU, the faster engine needs a larger alignment.
constexpr std::size_t fused_bytes = 1000, mma_bytes = 70'000, gemm_bytes = 5000;
const Engine fused{ANNULUS_ENGINE_FUSED, ANNULUS_DEVICE_CUDA, true, &prepare_idle<fused_bytes, 16>, nullptr};
const Engine mma{ANNULUS_ENGINE_MMA, ANNULUS_DEVICE_CUDA, true, &prepare_idle<mma_bytes, 4>, nullptr};
const Engine gemm{ANNULUS_ENGINE_GEMM, ANNULUS_DEVICE_CUDA, true, &prepare_idle<gemm_bytes, 1>, nullptr};
const Engine *const engines[] = {&fused, &mma, &gemm};

const Backend backend{.device = ANNULUS_DEVICE_CUDA, .engines = engines};

} // namespace

namespace test {
namespace {

class EngineChoice : public testing::Test {
  protected:
    ExecutionSetting setting(annulus_engine engine = ANNULUS_ENGINE_AUTO, std::uint64_t limit = 0) {
        return {backend, device_, engine, {.workspace_limit = limit}, 0};
    }
    annulus_engine chosen(std::uintptr_t address, const ExecutionSetting &setting) {
        CallTensors tensors{};
        tensors.q.data = reinterpret_cast<void *>(address);
        return planned_->executables.select(ANNULUS_PASS_FORWARD, &tensors, setting).engine.id;
    }
    annulus_engine selected(std::int64_t row_alignment, const ExecutionSetting &setting) {
        return planned_->executables.select_engine(ANNULUS_PASS_FORWARD, row_alignment, setting).id;
    }
    std::size_t announced(std::int64_t row_alignment, const ExecutionSetting &setting) {
        return planned_->executables.most_workspace(ANNULUS_PASS_FORWARD, row_alignment, setting);
    }

    static std::unique_ptr<LocalPlanned> plan(std::int32_t head_dim) {
        Pattern pattern;
        pattern.branches = {{.segment_length = 16}};
        const CallProblem problem{{ANNULUS_FLOAT32, 1, 50, 2, 2, head_dim, {0, 50}, {0, 50}}, {}};
        return std::make_unique<LocalPlanned>(pattern, problem);
    }

    CpuDevice device_;
    const std::unique_ptr<LocalPlanned> planned_ = plan(64);
};

TEST_F(EngineChoice, IsTheFirstThatTakesTheTensors) {
    EXPECT_EQ(chosen(32, setting()), ANNULUS_ENGINE_FUSED);
    EXPECT_EQ(chosen(36, setting()), ANNULUS_ENGINE_MMA);
    EXPECT_EQ(chosen(38, setting()), ANNULUS_ENGINE_GEMM);
    EXPECT_EQ(chosen(32, setting(ANNULUS_ENGINE_GEMM)), ANNULUS_ENGINE_GEMM);
}

TEST_F(EngineChoice, TellsWhyAnEngineIsRefused) {
    try {
        chosen(36, setting(ANNULUS_ENGINE_FUSED));
        FAIL() << "it was not refused";
    } catch (const Error &error) {
        EXPECT_EQ(error.status(), ANNULUS_ERROR_UNSUPPORTED);
        EXPECT_STREQ(error.what(), "engine fused cannot do this: its rows are not aligned");
    }
}

// Without tensors, select_engine() returns the engine that select() takes for tensors of exactly this alignment.
TEST_F(EngineChoice, IsToldBeforehand) {
    for (const std::int64_t alignment : {1, 2, 4, 8, 16, 4096})
        for (const std::uint64_t limit : {std::size_t{0}, mma_bytes - 1, fused_bytes - 1}) {
            const std::uintptr_t no_better = alignment;
            EXPECT_EQ(selected(alignment, setting(ANNULUS_ENGINE_AUTO, limit)),
                      chosen(no_better, setting(ANNULUS_ENGINE_AUTO, limit)));
        }
    EXPECT_EQ(selected(1, setting(ANNULUS_ENGINE_GEMM)), ANNULUS_ENGINE_GEMM);
    try {
        selected(8, setting(ANNULUS_ENGINE_FUSED));
        FAIL() << "it was not refused";
    } catch (const Error &error) {
        EXPECT_EQ(error.status(), ANNULUS_ERROR_UNSUPPORTED);
        EXPECT_NE(std::string(error.what()).find("row_alignment"), std::string::npos) << error.what();
    }
}

TEST_F(EngineChoice, IsTheFirstWithinTheLimit) {
    EXPECT_EQ(chosen(36, setting(ANNULUS_ENGINE_AUTO, mma_bytes)), ANNULUS_ENGINE_MMA);
    EXPECT_EQ(chosen(36, setting(ANNULUS_ENGINE_AUTO, mma_bytes - 1)), ANNULUS_ENGINE_GEMM);
    EXPECT_EQ(chosen(32, setting(ANNULUS_ENGINE_AUTO, fused_bytes - 1)),
              ANNULUS_ENGINE_GEMM); // no engine is within the limit
}

// A call fits into the announced workspace, whatever alignment its tensors have beyond the stated one.
TEST_F(EngineChoice, WorkspaceIsEnoughForEachEngineThatMayCompute) {
    EXPECT_EQ(announced(16, setting()), fused_bytes);
    EXPECT_EQ(announced(32, setting()), fused_bytes);
    EXPECT_EQ(announced(8, setting()), mma_bytes);
    EXPECT_EQ(announced(4, setting()), mma_bytes);
    EXPECT_EQ(announced(2, setting()), mma_bytes);
    EXPECT_EQ(announced(1, setting()), mma_bytes);
    EXPECT_EQ(announced(1, setting(ANNULUS_ENGINE_FUSED)), fused_bytes);
    EXPECT_EQ(announced(1, setting(ANNULUS_ENGINE_AUTO, mma_bytes - 1)), gemm_bytes);
    EXPECT_EQ(announced(1, setting(ANNULUS_ENGINE_AUTO, gemm_bytes - 1)), fused_bytes);
}

TEST_F(EngineChoice, WorkspaceOfAnEngineThatCannotIsNotAsked) {
    const std::unique_ptr<LocalPlanned> wide = plan(72);
    EXPECT_EQ(wide->executables.most_workspace(ANNULUS_PASS_FORWARD, 1, setting()), gemm_bytes);
}

} // namespace
} // namespace test
} // namespace annulus
