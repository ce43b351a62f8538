// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_case.hpp"

#include "cli/arrays/dtype_bytes.hpp"
#include <algorithm>

namespace annulus::cli {

Workload::Workload(const BenchCase &bench_case, const Rank &rank, Memory &memory)
    : memory_(memory), context_(make_context(bench_case.pattern, rank.execution, bench_case.problem.heads)),
      sequence_starts_(bench_case.sequence_starts), problem_(bench_case.problem.problem()), numbers_(problem_.dtype) {
    if (!sequence_starts_.empty()) {
        options_.sequence_count = static_cast<std::int64_t>(sequence_starts_.size()) - 1;
        options_.sequence_starts = sequence_starts_.data();
    }
    problem_.options = &options_;
    memory.order(context_.get());
    const Shards shards = bench_case.shards ? *bench_case.shards : rank.shards(context_.get(), problem_);
    rows_ = shards.rows(rank.index);
    rank.join(context_.get(), shards);
    forward_estimate_ = estimate_of(context_.get(), problem_, ANNULUS_PASS_FORWARD);
    backward_estimate_ = estimate_of(context_.get(), problem_, ANNULUS_PASS_BACKWARD);
    q_ = make_rows(problem_.heads, true);
    k_ = make_rows(problem_.kv_heads, true);
    v_ = make_rows(problem_.kv_heads, true);
    out_ = make_rows(problem_.heads, false);
    lse_ = make_tensor(problem_.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32,
                       {problem_.batch, problem_.heads, rows_}, false);
}

void Workload::add_gradients() {
    d_out_ = make_rows(problem_.heads, true);
    d_q_ = make_rows(problem_.heads, false);
    d_k_ = make_rows(problem_.kv_heads, false);
    d_v_ = make_rows(problem_.kv_heads, false);
}

void Workload::forward() {
    check(annulus_forward(context_.get(), &q_, &k_, &v_, &out_, &lse_, &options_));
}

void Workload::backward() {
    check(annulus_backward(context_.get(), &q_, &k_, &v_, &out_, &lse_, &d_out_, nullptr, &d_q_, &d_k_, &d_v_,
                           &options_));
}

annulus_tensor Workload::make_rows(std::int32_t heads, bool random) {
    return make_tensor(problem_.dtype, {problem_.batch, rows_, heads, problem_.head_dim}, random);
}

annulus_tensor Workload::make_tensor(annulus_dtype dtype, std::initializer_list<std::int64_t> shape, bool random) {
    annulus_tensor tensor{};
    tensor.dtype = dtype;
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape);
    std::int64_t count = 1;
    for (std::int32_t i = tensor.ndim; i-- > 0; count *= tensor.shape[i])
        tensor.stride[i] = count;
    allocations_.push_back(
        memory_.allocate(static_cast<std::size_t>(count) * static_cast<std::size_t>(dtype_bytes(dtype))));
    tensor.data = allocations_.back().get();
    if (random)
        numbers_.fill(memory_, allocations_.back().get(), count);
    return tensor;
}

PassFlops estimate_flops(const BenchCase &bench_case, const ExecutionOptions &execution) {
    ExecutionOptions unlimited = execution;
    unlimited.workspace_limit = 0;
    const Context context = make_context(bench_case.pattern, unlimited, bench_case.problem.heads);
    const annulus_problem problem = bench_case.problem.problem();
    return {estimate_of(context.get(), problem, ANNULUS_PASS_FORWARD).flops,
            estimate_of(context.get(), problem, ANNULUS_PASS_BACKWARD).flops};
}

double work_of(const BenchCase &bench_case, const ExecutionOptions &execution, int repeats,
               const std::vector<Yardstick> &yardsticks, const Memory &memory) {
    const auto [forward, backward] = estimate_flops(bench_case, execution);
    return (1 + memory.warm_up_rounds() + repeats) * (forward + backward) + (repeats + 1) * yardsticks.front().amount;
}

Measurement measure(Workload &workload, int repeats, std::vector<Yardstick> &yardsticks, Memory &memory,
                    Progress &progress) {
    const auto forward = [&] { workload.forward(); };
    const auto backward = [&] { workload.backward(); };
    const auto measure_yardsticks = [&](Sample &product_rates) {
        progress.begin(yardsticks.front().amount);
        product_rates.add(measure(yardsticks.front(), memory));
        for (std::size_t i = 1; i < yardsticks.size(); ++i)
            measure(yardsticks[i], memory);
    };
    Measurement result;
    result.forward.flops = workload.forward_estimate().flops;
    result.forward.workspace_bytes = workload.forward_estimate().workspace_bytes;
    progress.begin(result.forward.flops);
    result.forward.measured_peak_bytes = memory.peak_bytes_of(workload.context(), forward);
    workload.add_gradients();
    result.backward.flops = workload.backward_estimate().flops;
    result.backward.workspace_bytes = workload.backward_estimate().workspace_bytes;
    progress.begin(result.backward.flops);
    result.backward.measured_peak_bytes = memory.peak_bytes_of(workload.context(), backward);
    for (int i = 0; i < memory.warm_up_rounds(); ++i) {
        progress.begin(result.forward.flops + result.backward.flops);
        forward();
        backward();
    }
    for (int i = 0; i < repeats; ++i) {
        measure_yardsticks(result.product_rates);
        progress.begin(result.forward.flops);
        result.forward.seconds.add(memory.seconds_of(forward));
        progress.begin(result.backward.flops);
        result.backward.seconds.add(memory.seconds_of(backward));
    }
    measure_yardsticks(result.product_rates);
    return result;
}

} // namespace annulus::cli
