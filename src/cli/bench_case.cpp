// SPDX-License-Identifier: Apache-2.0
#include "bench_case.hpp"

#include "convert.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <malloc.h>

namespace annulus::cli {

namespace {

// A field of /proc/self/status in bytes, such as VmHWM, the most memory the process has had.
std::optional<std::uint64_t> memory_status(const std::string &field) {
    std::ifstream status("/proc/self/status");
    std::string name;
    std::uint64_t kibibytes = 0;
    while (status >> name) {
        if (name == field + ":")
            return status >> kibibytes ? std::optional(kibibytes * 1024) : std::nullopt;
        status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return std::nullopt;
}

// How far the process's memory rises during `work`. What earlier work freed is given back to the system first, and the
// high-water mark lowered to the present use.
template <class Work> std::optional<std::uint64_t> peak_bytes_of(const Work &work) {
    malloc_trim(0);
    const bool reset = static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush);
    const std::optional<std::uint64_t> before = memory_status("VmRSS");
    work();
    const std::optional<std::uint64_t> peak = memory_status("VmHWM");
    if (!reset || !before || !peak)
        return std::nullopt;
    return *peak - std::min(*peak, *before);
}

} // namespace

Run::Run(const BenchCase &bench_case, const ExecutionOptions &execution)
    : context_(make_context(bench_case.pattern, execution, bench_case.problem.heads)),
      problem_(bench_case.problem.problem()) {
    check(annulus_estimate_problem(context_.get(), &problem_, ANNULUS_ALL_BRANCHES, &estimate_));
    const std::int64_t n = problem_.sequence_length;
    q_ = make_rows(n, problem_.heads, true);
    k_ = make_rows(n, problem_.kv_heads, true);
    v_ = make_rows(n, problem_.kv_heads, true);
    out_ = make_rows(n, problem_.heads, false);
    lse_ = make_tensor(problem_.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32,
                       {problem_.batch, problem_.heads, n}, false);
}

void Run::add_gradients() {
    const std::int64_t n = problem_.sequence_length;
    d_out_ = make_rows(n, problem_.heads, true);
    d_q_ = make_rows(n, problem_.heads, false);
    d_k_ = make_rows(n, problem_.kv_heads, false);
    d_v_ = make_rows(n, problem_.kv_heads, false);
}

void Run::forward() {
    check(annulus_forward(context_.get(), &q_, &k_, &v_, &out_, &lse_, nullptr));
}

void Run::backward() {
    check(
        annulus_backward(context_.get(), &q_, &k_, &v_, &out_, &lse_, &d_out_, nullptr, &d_q_, &d_k_, &d_v_, nullptr));
}

annulus_tensor Run::make_rows(std::int64_t length, std::int32_t heads, bool random) {
    return make_tensor(problem_.dtype, {problem_.batch, length, heads, problem_.head_dim}, random);
}

// Uniform numbers of variance 1, or zeros; either way every page is there before anything is measured.
annulus_tensor Run::make_tensor(annulus_dtype dtype, std::initializer_list<std::int64_t> shape, bool random) {
    annulus_tensor tensor{};
    tensor.dtype = dtype;
    tensor.rank = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape);
    std::int64_t count = 1;
    for (std::int32_t i = tensor.rank; i-- > 0; count *= tensor.shape[i])
        tensor.stride[i] = count;

    const auto element = static_cast<std::size_t>(annulus_dtype_bytes(dtype));
    memory_.push_back(std::make_unique<std::byte[]>(static_cast<std::size_t>(count) * element));
    tensor.data = memory_.back().get();
    if (!random)
        return tensor;
    std::array<float, 4096> numbers;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); i += numbers.size()) {
        const std::size_t n = std::min(numbers.size(), static_cast<std::size_t>(count) - i);
        for (std::size_t j = 0; j < n; ++j) { // xorshift
            random_state_ ^= random_state_ << 13;
            random_state_ ^= random_state_ >> 7;
            random_state_ ^= random_state_ << 17;
            numbers[j] = (static_cast<float>(random_state_ >> 40) * 0x1p-23F - 1.0F) * 1.7320508F;
        }
        convert(dtype, memory_.back().get() + i * element, ANNULUS_FLOAT32, numbers.data(), n);
    }
    return tensor;
}

Measurement measure(Run &run, int repeats, SgemmRate &sgemm) {
    const annulus_estimate &estimate = run.estimate();
    Measurement result;
    result.forward.flops = estimate.forward_flops;
    result.forward.workspace_bytes = estimate.forward_workspace_bytes;
    result.forward.measured_peak_bytes = peak_bytes_of([&] { run.forward(); });
    run.add_gradients();
    result.backward.flops = estimate.backward_flops;
    result.backward.workspace_bytes = estimate.backward_workspace_bytes;
    result.backward.measured_peak_bytes = peak_bytes_of([&] { run.backward(); });
    for (int i = 0; i < repeats; ++i) {
        result.sgemm_rates.add(sgemm.measure());
        result.forward.seconds.add(seconds_of([&] { run.forward(); }));
        result.backward.seconds.add(seconds_of([&] { run.backward(); }));
    }
    result.sgemm_rates.add(sgemm.measure());
    return result;
}

} // namespace annulus::cli
