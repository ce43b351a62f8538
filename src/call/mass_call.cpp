// SPDX-License-Identifier: Apache-2.0
#include "call/mass_call.hpp"

#include "core/dtype.hpp"
#include "core/dtype_number.hpp"
#include "core/workspace.hpp"

#include <bit>
#include <cstdint>

namespace annulus {

namespace {

struct MassMemory {
    void *d_out, *d_v;
};

MassMemory book(Workspace &workspace, const Problem &p) {
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

} // namespace

GradientTargets mass_gradients(annulus_dtype dtype) {
    GradientTargets targets;
    targets.only_v = true;
    targets.v.is_float32 = sum_dtype(dtype) != dtype;
    return targets;
}

std::size_t own_bytes(annulus_pass pass, const Problem &problem) {
    if (pass != ANNULUS_PASS_MASS)
        return 0;
    Workspace ledger;
    book(ledger, problem);
    return ledger.used();
}

MassCall::MassCall(const Problem &p, const CallTensors &tensors, const annulus_tensor &mass, void *memory)
    : tensors_(tensors) {
    // Without memory addresses that are as well aligned, and of which nothing but that is asked.
    alignas(Workspace::alignment) static std::byte stand_in[Workspace::alignment];
    Workspace workspace(memory);
    MassMemory own = book(workspace, p);
    if (!memory)
        own = {stand_in, stand_in};
    const annulus_dtype sum = sum_dtype(p.dtype);
    tensors_.v = tensors.k;
    tensors_.out = tensors.q;
    tensors_.d_out = packed(own.d_out, p.dtype, p, p.queries.length, p.heads);
    tensors_.d_q = tensors_.d_k = {nullptr, p.dtype, 4, {}, {}};
    tensors_.d_v = packed(own.d_v, sum, p, p.keys.length, p.kv_heads);
    work_ = {.dtype = p.dtype,
             .one = bits_of_one(p.dtype),
             .heads = p.heads,
             .heads_of_kv_head = p.heads / p.kv_heads,
             .head_dim = p.head_dim,
             .batches = p.batch,
             .queries = p.queries.length,
             .keys = p.keys.length,
             .first_member = 0,
             .d_out = own.d_out,
             .d_v = own.d_v,
             .mass = mass.data,
             .mass_batch = mass.stride[0],
             .mass_head = mass.stride[1],
             .mass_row = mass.stride[2]};
}

} // namespace annulus
