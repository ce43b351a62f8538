// SPDX-License-Identifier: Apache-2.0
// The `gemm` engine: attention as batched matrix products on the caller's tensors, on any NVIDIA GPU.
//
// The keys of a dilated class are rows n0, n0 + r, n0 + 2r, … of the caller's own tensor. So a class is a matrix whose
// row pitch is r times the tensor's, and nothing is gathered. Forward, for each launch of equal tiles:
//
//     S = Q K^T                              product
//     m, l, P, O = softmax(scale log2(e) S)  kernel, in place: P overwrites S, O is rescaled (softmax.cu)
//     O += P V                               product
//
// and O / l at the end of a block. Backward:
//
//     S = Q K^T,  T = dO V^T
//     P = 2^(log2(e) (scale S - LSE)),  dS = scale P (T - delta)
//     dV += P^T dO,  dK += dS^T Q,  dQ += dS K
//
// If only dV is wanted, backward computes S, P and dV alone.
//
// Causality and windows hide keys. Pieces of a class that a bound crosses make equal tiles along a diagonal. Their
// kernels hide keys by their places. Pieces outside a window have no tiles (tiles.cpp).
//
// Under the key rule `once`, a kernel after S hides the keys that an earlier branch has (repeated_keys.cu). It runs for
// tiles that may have such keys.
//
// O and the gradients of a block are summed in float32 in the workspace. If one tile alone computes each row of the
// results, the last products are the results and are written to the caller's tensors. The rows of some tiles are no
// matrix to cuBLAS: an order along a curve, or strides or addresses that it does not take. Such tiles are packed first,
// and their products are added row by row.
//
// Blocks (layout.hpp) are independent. There are two workers, each with a stream and a block. One keeps the GPU busy
// while the other starts or drains a kernel.
#include "cuda/gemm/engine.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"
#include "cuda/device/cuda_error.hpp"
#include "cuda/gemm/call.hpp"
#include "cuda/gemm/worker.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>

namespace annulus {

namespace {

const char *refusal(const Plan &plan, const CudaDevice &device) {
    if (plan.problem().dtype == ANNULUS_FLOAT64)
        return "it has no float64; the CPU engines have";
    if (plan.problem().dtype == ANNULUS_BFLOAT16 && device.compute_capability() < 80)
        return "bfloat16 products need a GPU of compute capability 8.0 or higher; float16 runs on this one";
    return nullptr;
}

// True if each progression of a tensor's rows is a matrix to cuBLAS: rows begin at multiples of 16 bytes and do not
// overlap.
bool are_matrices(std::initializer_list<const annulus_tensor *> tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [](const annulus_tensor *tensor) {
        const std::int64_t unit = 16 / dtype_bytes(tensor->dtype);
        const auto is_aligned = [&](int i) { return tensor->shape[i] == 1 || tensor->stride[i] % unit == 0; };
        return reinterpret_cast<std::uintptr_t>(tensor->data) % 16 == 0 && is_aligned(0) && is_aligned(1) &&
               is_aligned(2) && (tensor->shape[1] == 1 || tensor->stride[1] >= tensor->shape[3]);
    });
}

// The scope from the fork of the workers to their join. It joins even on failure, since the workers use the workspace.
class WorkersAtWork {
  public:
    WorkersAtWork(CudaDevice &device, cudaStream_t stream) : device_(device), stream_(stream) { device.fork(stream); }
    ~WorkersAtWork() {
        if (has_joined_)
            return;
        try {
            device_.join(stream_);
        } catch (const Error &) { // the first error is the one to report
        }
    }
    WorkersAtWork(const WorkersAtWork &) = delete;
    WorkersAtWork &operator=(const WorkersAtWork &) = delete;
    void join() {
        has_joined_ = true;
        device_.join(stream_);
    }

  private:
    CudaDevice &device_;
    cudaStream_t stream_;
    bool has_joined_ = false;
};

class GemmExecutable final : public Executable {
  public:
    GemmExecutable(const Plan &plan, annulus_pass pass, KeyScope scope, CudaDevice &device, const Limits &limits)
        : plan_(plan), pass_(pass), scope_(scope), device_(device), allow_tf32_(limits.allow_tf32),
          general_layout_(layout_within(plan, pass, limits.workspace_limit,
                                        scope == KeyScope::all_keys ? Results::in_state : Results::in_partial)),
          bytes_(booked_bytes(plan, pass, general_layout_)) {
        const bool are_plain = pass == ANNULUS_PASS_FORWARD || plan.problem().gradients.are_plain();
        if (scope != KeyScope::all_keys || !are_plain)
            return;
        direct_layout_ = layout_within(plan, pass, limits.workspace_limit, Results::direct);
        bytes_ = std::max(bytes_, booked_bytes(plan, pass, *direct_layout_));
    }

    // The larger of both layouts: it is not known yet whether the tensors will be matrices to cuBLAS.
    std::size_t workspace_bytes() const override { return bytes_; }

    void run(const CallTensors &tensors, const PartialResults &partial, void *workspace, void *stream) override {
        const CudaCall call(plan_, device_, tensors, partial, stream);
        const bool forward = pass_ == ANNULUS_PASS_FORWARD;
        const bool inputs = forward ? are_matrices({&tensors.q, &tensors.k, &tensors.v})
                                    : are_matrices({&tensors.q, &tensors.k, &tensors.v, &tensors.d_out});
        const bool outputs =
            forward ? are_matrices({&tensors.out}) : are_matrices({&tensors.d_q, &tensors.d_k, &tensors.d_v});
        GemmRun run{call,   pass_,       scope_,
                    inputs, allow_tf32_, direct_layout_ && inputs && outputs ? *direct_layout_ : general_layout_,
                    {}};
        Workspace ledger(workspace);
        run.memory = book(ledger, plan_, pass_, run.layout);
        ArrayStores stores(call.stream);
        store_branches(plan_, run.memory.branches, stores);
        stores.launch();
        if (scope_ != KeyScope::all_keys)
            use_partial_results(run);
        run_workers(run);
        if (scope_ == KeyScope::own_keys && plan_.hides_keys())
            recompute_partial_results(run);
    }

    void write_unfinished(const CallTensors &tensors, const PartialResults &partial, void *stream) override {
        const CudaCall call(plan_, device_, tensors, partial, stream);
        const RowContext rows = call.row_context(nullptr, nullptr);
        if (pass_ == ANNULUS_PASS_FORWARD)
            write_outputs(call.problem().dtype,
                          {call.whole(), call.partial.state, call.partial.o, call.out, call.lse, rows}, call.stream);
        else
            write_gradients(
                call.problem().dtype,
                {call.whole(), call.partial.gradients, call.d_q, call.d_k, call.d_v, call.problem().gradients, rows},
                call.stream);
    }

  private:
    // Makes all workers add to the partial results. The executable for the own keys initialises them
    // first.
    void use_partial_results(GemmRun &run) const {
        const CudaCall &call = run.call;
        const Problem &problem = call.problem();
        float2 *const state = call.partial.state;
        const PartialGradients &gradients = call.partial.gradients;
        const bool first = scope_ == KeyScope::own_keys;
        const std::int64_t query_rows = problem.batch * problem.heads * problem.queries.length;
        const std::int64_t key_rows = problem.batch * problem.kv_heads * problem.key_rows();
        if (run.is_forward()) {
            if (first)
                fill_state(state, query_rows, empty_state(), call.stream);
        } else {
            if (!problem.gradients.only_v) {
                if (first)
                    call.clear_partial(gradients.d_q, query_rows);
                call.clear_partial(gradients.d_k, key_rows);
            }
            call.clear_partial(gradients.d_v, key_rows);
        }
        for (WorkerMemory &worker : run.memory.workers) {
            worker.state = state;
            worker.o = run.is_forward() ? call.partial.o : gradients.d_q;
            worker.d_k = gradients.d_k;
            worker.d_v = gradients.d_v;
        }
    }

    void run_workers(const GemmRun &run) {
        WorkersAtWork at_work(device_, run.call.stream);
        std::array<std::optional<Worker>, CudaDevice::side_streams> workers;
        for (int i = 0; i < run.layout.workers; ++i)
            workers[static_cast<std::size_t>(i)].emplace(run, i, lists_[static_cast<std::size_t>(i)]);
        for (const BlockGrid &grid : run.layout.grids) {
            for (std::optional<Worker> &worker : workers)
                if (worker)
                    worker->start(grid);
            // The workers take turns, so that no queue runs empty while another is filled.
            for (bool busy = true; busy;) {
                busy = false;
                for (std::optional<Worker> &worker : workers)
                    busy = (worker && worker->step()) || busy;
            }
        }
        at_work.join();
    }

    // Recomputes rows before other executables add to the partial results. Windows hide received keys, too: a NaN or
    // infinity in such a key stays, since the partial results hold the sums of other keys already.
    void recompute_partial_results(const GemmRun &run) const {
        const CudaCall &call = run.call;
        const RowContext rows = call.row_context(run.memory.branches, nullptr);
        if (run.is_forward())
            recompute_partial_outputs(call.problem().dtype,
                                      {call.whole(), call.partial.state, call.partial.o, {}, {}, rows}, call.stream);
        else
            recompute_partial_gradients(call.problem().dtype,
                                        {call.whole(), call.partial.gradients, {}, {}, {}, {}, rows}, call.stream);
    }

    const Plan plan_;
    const annulus_pass pass_;
    const KeyScope scope_;
    CudaDevice &device_;
    const bool allow_tf32_;
    const GemmLayout general_layout_; // for tensors of any layout
    // For a whole call whose tensors are matrices to cuBLAS. Empty if a gradient's target is not plain.
    std::optional<GemmLayout> direct_layout_;
    std::size_t bytes_;
    std::array<WorkerLists, CudaDevice::side_streams> lists_;
};

Preparation prepare(const Plan &plan, annulus_pass pass, KeyScope scope, Device &context_device, const Limits &limits) {
    CudaDevice &device = cuda_device(context_device);
    if (const char *reason = refusal(plan, device))
        return {nullptr, reason};
    return {std::make_unique<GemmExecutable>(plan, pass, scope, device, limits)};
}

} // namespace

const Engine gemm_engine{
    .id = ANNULUS_ENGINE_GEMM,
    .device = ANNULUS_DEVICE_CUDA,
    .has_key_scopes = true,
    .prepare = prepare,
    .clear = clear_device_rows,
};

} // namespace annulus
