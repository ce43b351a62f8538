// SPDX-License-Identifier: Apache-2.0
// The `gemm` engine: attention as batched matrix products on the caller's tensors, on any NVIDIA GPU.
//
// The keys of a dilated class are rows n0, n0 + r, n0 + 2r, … of the caller's own tensor, so a class is a matrix whose
// row pitch is r times the tensor's: nothing is gathered. Forward, for each launch of equal tiles:
//
//     S = Q K^T                              product
//     m, l, P, O = softmax(scale log2(e) S)  kernel, in place: P overwrites S, O is rescaled (scores.cu)
//     O += P V                               product
//
// and O / l at the end of a block. Backward:
//
//     S = Q K^T,  T = dO V^T
//     P = 2^(log2(e) (scale S - LSE)),  dS = scale P (T - delta)
//     dV += P^T dO,  dK += dS^T Q,  dQ += dS K
//
// O and the gradients of a block are summed in float32 in the workspace; where each row of the results is the matter of
// one tile alone, the last products are the results and are written to the caller's tensors. Tiles whose rows are no
// matrix (an order along a curve, strides or addresses that cuBLAS does not take) are packed first and their products
// added row by row.
//
// Blocks (gemm_layout.hpp) are independent. Two lanes, each a stream with a block of its own, keep the GPU busy while
// one of them starts or drains a kernel.
#include "engine/engine.hpp"
#include "core/error.hpp"
#include "cuda/device/cuda_error.hpp"
#include "cuda/gemm/call.hpp"
#include "cuda/gemm/lane.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

namespace {

constexpr std::uint64_t default_workspace = std::uint64_t{256} << 20;

std::size_t booked_bytes(const Plan &plan, annulus_pass pass, const GemmLayout &layout) {
    Workspace ledger;
    book(ledger, plan, pass, layout);
    return ledger.used();
}

// A layout of at most the limit, or else the smallest.
GemmLayout layout_for(const Plan &plan, annulus_pass pass, const Resources &resources, Results results) {
    const std::uint64_t limit = resources.workspace_limit ? resources.workspace_limit : default_workspace;
    GemmLayout layout = make_layout(plan, pass, limit, CudaDevice::lanes, results);
    if (booked_bytes(plan, pass, layout) > limit)
        return make_layout(plan, pass, 0, CudaDevice::lanes, results);
    return layout;
}

const char *refusal(const Plan &plan, annulus_pass, const Resources &resources) {
    if (plan.problem().dtype == ANNULUS_FLOAT64)
        return "it has no float64; the CPU engines have";
    const CudaDevice &device = cuda_device(resources);
    if (plan.problem().dtype == ANNULUS_BFLOAT16 && device.compute_capability() < 80)
        return "bfloat16 products need a GPU of compute capability 8.0 or higher; float16 runs on this one";
    return nullptr;
}

// What the tensors will be like is not known yet.
std::size_t workspace_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    std::size_t most = 0;
    for (const Results results : {Results::in_state, Results::direct})
        most = std::max(most, booked_bytes(plan, pass, layout_for(plan, pass, resources, results)));
    return most;
}

std::size_t step_bytes(const Plan &plan, annulus_pass pass, const Resources &resources) {
    return booked_bytes(plan, pass, layout_for(plan, pass, resources, Results::in_sums));
}

// From the fork of the lanes to their join, which comes in any case: the workspace must not be given back under them.
class LanesAtWork {
  public:
    LanesAtWork(CudaDevice &device, cudaStream_t stream) : device_(device), stream_(stream) { device.fork(stream); }
    ~LanesAtWork() {
        if (joined_)
            return;
        try {
            device_.join(stream_);
        } catch (const Error &) { // the error that brought us here is the one to report
        }
    }
    LanesAtWork(const LanesAtWork &) = delete;
    LanesAtWork &operator=(const LanesAtWork &) = delete;
    void join() {
        joined_ = true;
        device_.join(stream_);
    }

  private:
    CudaDevice &device_;
    cudaStream_t stream_;
    bool joined_ = false;
};

// What a step of a call finds in the sums.
void prepare_sums(const CudaCall &call) {
    const Problem &problem = call.plan.problem();
    const StepSums &sums = *call.sums;
    const std::int64_t query_rows = problem.batch * problem.heads * problem.queries.length;
    const std::int64_t key_rows = problem.batch * problem.kv_heads * problem.key_rows();
    if (call.is_forward()) {
        if (sums.first)
            fill_state(sums.state, query_rows, empty_state(), call.stream());
        return;
    }
    if (sums.first)
        call.clear_sums(sums.o, query_rows);
    call.clear_sums(sums.d_k, key_rows);
    call.clear_sums(sums.d_v, key_rows);
}

// Of the first step, the only one in which keys are hidden: before the others add to its sums.
void repair(const CudaCall &call, const BranchPlan *branches) {
    const annulus_dtype dtype = call.plan.problem().dtype;
    const StepSums &sums = *call.sums;
    const RowContext rows = call.row_context(branches, nullptr);
    if (call.is_forward())
        repair_sums(dtype, {call.whole(), sums.state, sums.o, {}, {}, rows}, call.stream());
    else
        repair_gradient_sums(dtype, {call.whole(), {sums.o, sums.d_k, sums.d_v}, {}, {}, {}, rows}, call.stream());
}

void run(const CudaCall &call, Workspace &workspace) {
    const bool matrices = call.input_matrices && call.output_matrices;
    const GemmLayout layout =
        layout_for(call.plan, call.pass, call.resources,
                   call.sums ? Results::in_sums : (matrices ? Results::direct : Results::in_state));
    GemmMemory memory = book(workspace, call.plan, call.pass, layout);
    cudaStream_t const stream = call.stream();
    const std::vector<BranchPlan> &branches = call.plan.branches();
    if (memory.branches)
        store_branches(branches.data(), static_cast<std::int32_t>(branches.size()), memory.branches, stream);
    if (call.sums) {
        prepare_sums(call);
        for (LaneMemory &lane : memory.lanes) {
            lane.state = call.sums->state;
            lane.o = call.sums->o;
            lane.d_k = call.sums->d_k;
            lane.d_v = call.sums->d_v;
        }
    }
    LanesAtWork at_work(call.device, stream);
    std::array<std::optional<Lane>, CudaDevice::lanes> lanes;
    for (int i = 0; i < layout.lanes; ++i)
        lanes[static_cast<std::size_t>(i)].emplace(call, layout, memory, i);
    for (const BlockGrid &grid : layout.grids) {
        for (std::optional<Lane> &lane : lanes)
            if (lane)
                lane->start(grid);
        // In turns, so that no lane's queue runs dry while another's is filled.
        for (bool busy = true; busy;) {
            busy = false;
            for (std::optional<Lane> &lane : lanes)
                busy = (lane && lane->step()) || busy;
        }
    }
    at_work.join();
    if (call.sums && call.sums->first && call.plan.causal())
        repair(call, memory.branches);
}

void forward(const Plan &plan, const ForwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    run(CudaCall(plan, tensors, resources), workspace);
}

void backward(const Plan &plan, const BackwardTensors &tensors, Workspace &workspace, const Resources &resources) {
    run(CudaCall(plan, tensors, resources), workspace);
}

void forward_step(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums, bool first,
                  Workspace &workspace, const Resources &resources) {
    run(CudaCall(plan, tensors, resources, sums, first), workspace);
}

void backward_step(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums, bool first,
                   Workspace &workspace, const Resources &resources) {
    run(CudaCall(plan, tensors, resources, sums, first), workspace);
}

void finish_forward(const Plan &plan, const ForwardTensors &tensors, const ForwardSums &sums,
                    const Resources &resources) {
    const CudaCall call(plan, tensors, resources);
    write_outputs(plan.problem().dtype,
                  {call.whole(), static_cast<const float2 *>(sums.statistics), static_cast<float *>(sums.o), call.out,
                   call.lse, call.row_context(nullptr, nullptr)},
                  call.stream());
}

void finish_backward(const Plan &plan, const BackwardTensors &tensors, const BackwardSums &sums,
                     const Resources &resources) {
    const CudaCall call(plan, tensors, resources, sums, false);
    write_gradients(plan.problem().dtype,
                    {call.whole(),
                     {call.sums->o, call.sums->d_k, call.sums->d_v},
                     call.d_q,
                     call.d_k,
                     call.d_v,
                     call.row_context(nullptr, nullptr)},
                    call.stream());
}

} // namespace

const Engine gemm_engine = {
    ANNULUS_ENGINE_GEMM, ANNULUS_DEVICE_CUDA, refusal,       nullptr,        workspace_bytes, forward, backward,
    step_bytes,          forward_step,        backward_step, finish_forward, finish_backward};

} // namespace annulus
