// SPDX-License-Identifier: Apache-2.0
#include "call/merge_call.hpp"

#include "call/call_memory.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"
#include "engine/merge.hpp"

#include <cstdio>

namespace annulus {

namespace {

// Calls use(input) for the parts' tensors, named.
template <class Use> void for_each_input(const CheckedMerge &call, const Use &use) {
    char name[32];
    for (std::int32_t i = 0; i < call.count; ++i) {
        std::snprintf(name, sizeof name, "outs[%d]", i);
        use(NamedTensor{name, call.outs + i});
        std::snprintf(name, sizeof name, "lses[%d]", i);
        use(NamedTensor{name, call.lses + i});
    }
}

// An output may stand in the place of an input, element by element, but not overlap it otherwise.
void check_overlaps(const CheckedMerge &call) {
    const NamedTensor out{"out", &call.out}, lse{"lse", call.lse};
    check_overlap({}, {out, lse});
    for_each_input(call, [&](const NamedTensor &input) {
        for (const NamedTensor &output : {out, lse})
            if (output.tensor && !same_elements(*input.tensor, *output.tensor))
                check_overlap({input}, {output});
    });
}

MergeRows rows_of(const annulus_tensor &tensor) {
    if (tensor.ndim == 4)
        return {tensor.data, tensor.stride[0], tensor.stride[2], tensor.stride[1]};
    return {tensor.data, tensor.stride[0], tensor.stride[1], tensor.stride[2]};
}

MergeWork work_of(const CheckedMerge &call) {
    const Problem &problem = call.problem;
    MergeWork work{};
    work.dtype = problem.dtype;
    work.count = call.count;
    work.heads = problem.heads;
    work.head_dim = problem.head_dim;
    work.batches = problem.batch;
    work.rows = problem.queries.length;
    work.out = rows_of(call.out);
    if (call.lse)
        work.lse = rows_of(*call.lse);
    for (std::int32_t i = 0; i < call.count; ++i) {
        work.outs[i] = rows_of(call.outs[i]);
        work.lses[i] = rows_of(call.lses[i]);
    }
    return work;
}

} // namespace

void run_merge(annulus_context &context, const CheckedMerge &call) {
    if (context.kind == ANNULUS_DEVICE_CUDA && call.problem.dtype == ANNULUS_FLOAT64)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "dtype of outs[0] is float64; on a CUDA device it must be float32, bfloat16 or float16");
    check_overlaps(call);
    const DeviceScope scope(*context.device);
    for_each_input(call, [&](const NamedTensor &input) { check_memory(*context.device, input); });
    check_memory(*context.device, {"out", &call.out});
    check_memory(*context.device, {"lse", call.lse});
    if (call.problem.queries.length > 0)
        merge(context.kind, work_of(call), context.thread_limit(), context.stream);
}

} // namespace annulus
