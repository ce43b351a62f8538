// SPDX-License-Identifier: Apache-2.0
#include "call/mass_executable.hpp"

#include "core/dtype.hpp"
#include "core/dtype_number.hpp"
#include "core/workspace.hpp"

#include <bit>
#include <cstdint>
#include <utility>

namespace annulus {

namespace {

struct MassGradients {
    void *d_out, *d_v;
};

MassGradients book(Workspace &workspace, const Problem &p) {
    const auto take = [&](std::int64_t rows, std::int32_t heads, annulus_dtype dtype) {
        return workspace.take<std::byte>(p.batch, rows, heads, p.head_dim, dtype_bytes(dtype));
    };
    return {take(p.queries.length, p.heads, p.dtype), take(p.keys.length, p.kv_heads, sum_dtype(p.dtype))};
}

annulus_tensor packed(void *data, annulus_dtype dtype, const Problem &p, std::int64_t rows, std::int64_t heads) {
    const std::int64_t d = p.head_dim;
    return {data, dtype, 4, {p.batch, rows, heads, d}, {rows * heads * d, heads * d, d, 1}};
}

std::uint64_t bits_of_one(annulus_dtype dtype) {
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return std::bit_cast<std::uint64_t>(1.0);
    case ANNULUS_FLOAT32:
        return std::bit_cast<std::uint32_t>(1.0F);
    case ANNULUS_BFLOAT16:
        return from_float<bfloat16>(1.0F).bits;
    default:
        return from_float<float16>(1.0F).bits;
    }
}

// Returns the arguments of the backward runs. `tensors` are those of an attention mass.
CallTensors backward_tensors(const Problem &p, const CallTensors &tensors, const MassGradients &gradients) {
    CallTensors arguments = tensors;
    arguments.v = tensors.k; // V and O do not matter for dV, but are read
    arguments.out = tensors.q;
    arguments.d_out = packed(gradients.d_out, p.dtype, p, p.queries.length, p.heads);
    arguments.d_q = arguments.d_k = {nullptr, p.dtype, 4, {}, {}};
    arguments.d_v = packed(gradients.d_v, sum_dtype(p.dtype), p, p.keys.length, p.kv_heads);
    return arguments;
}

} // namespace

GradientTargets mass_gradients(annulus_dtype dtype) {
    GradientTargets targets;
    targets.only_v = true;
    targets.v.is_float32 = sum_dtype(dtype) != dtype;
    return targets;
}

MassExecutable::MassExecutable(const Backend &backend, const Problem &problem, const Limits &limits,
                               std::unique_ptr<Executable> backward)
    : backend_(backend), problem_(problem), threads_(limits.threads), backward_(std::move(backward)) {}

std::size_t MassExecutable::gradient_bytes(const Problem &problem) {
    Workspace ledger;
    book(ledger, problem);
    return ledger.used();
}

std::size_t MassExecutable::workspace_bytes() const {
    return gradient_bytes(problem_) + backward_->workspace_bytes();
}

const char *MassExecutable::tensor_refusal(const CallTensors &tensors) const {
    // Stands for dO and dV, which have no memory yet: a backward executable asks for no more than their alignment.
    alignas(Workspace::alignment) static std::byte aligned[Workspace::alignment];
    return backward_->tensor_refusal(backward_tensors(problem_, tensors, {aligned, aligned}));
}

void MassExecutable::run(const CallTensors &tensors, const PartialResults &, void *workspace, void *stream) {
    Workspace ledger(workspace);
    const MassGradients gradients = book(ledger, problem_);
    void *const backward_workspace = static_cast<std::byte *>(workspace) + ledger.used();
    const CallTensors arguments = backward_tensors(problem_, tensors, gradients);
    MassWork work{.dtype = problem_.dtype,
                  .one = bits_of_one(problem_.dtype),
                  .heads = problem_.heads,
                  .heads_of_kv_head = problem_.heads / problem_.kv_heads,
                  .head_dim = problem_.head_dim,
                  .batches = problem_.batch,
                  .queries = problem_.queries.length,
                  .keys = problem_.keys.length,
                  .first_member = 0,
                  .d_out = gradients.d_out,
                  .d_v = gradients.d_v,
                  .mass = tensors.mass.data,
                  .mass_batch = tensors.mass.stride[0],
                  .mass_head = tensors.mass.stride[1],
                  .mass_row = tensors.mass.stride[2]};
    const auto rounds = static_cast<std::int32_t>(mass_rounds(problem_));
    for (std::int32_t round = 0; round < rounds; ++round) {
        work.first_member = round * problem_.head_dim;
        backend_.mark_heads(work, threads_, stream);
        backward_->run(arguments, {}, backward_workspace, stream);
        backend_.take_mass(work, threads_, stream);
    }
}

} // namespace annulus
