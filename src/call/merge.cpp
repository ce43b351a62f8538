// SPDX-License-Identifier: Apache-2.0
#include "call/merge.hpp"

#include "call/call_memory.hpp"
#include "core/error.hpp"
#include "core/tensor.hpp"
#include "engine/merge.hpp"

#include <cstdio>

namespace annulus {

namespace {

// Calls use(input) for each input tensor with its name.
template <class Use> void for_each_input(const MergeArguments &arguments, const Use &use) {
    char name[32];
    for (std::int32_t i = 0; i < arguments.count; ++i) {
        std::snprintf(name, sizeof name, "outs[%d]", i);
        use(NamedTensor{name, arguments.outs + i});
        std::snprintf(name, sizeof name, "lses[%d]", i);
        use(NamedTensor{name, arguments.lses + i});
    }
}

// Throws if an output overlaps an input other than element by element.
void check_overlaps(const MergeArguments &arguments) {
    const NamedTensor out{"out", &arguments.out}, lse{"lse", arguments.lse};
    check_overlap({}, {out, lse});
    for_each_input(arguments, [&](const NamedTensor &input) {
        for (const NamedTensor &output : {out, lse})
            if (output.tensor && !same_elements(*input.tensor, *output.tensor))
                check_overlap({input}, {output});
    });
}

MergeRows merge_rows(const annulus_tensor &tensor) {
    if (tensor.ndim == 4)
        return {tensor.data, tensor.stride[0], tensor.stride[2], tensor.stride[1]};
    return {tensor.data, tensor.stride[0], tensor.stride[1], tensor.stride[2]};
}

MergeWork merge_work(const MergeArguments &arguments) {
    const Problem &problem = arguments.problem;
    MergeWork work{};
    work.dtype = problem.dtype;
    work.count = arguments.count;
    work.heads = problem.heads;
    work.head_dim = problem.head_dim;
    work.batches = problem.batch;
    work.rows = problem.queries.length;
    work.out = merge_rows(arguments.out);
    if (arguments.lse)
        work.lse = merge_rows(*arguments.lse);
    for (std::int32_t i = 0; i < arguments.count; ++i) {
        work.outs[i] = merge_rows(arguments.outs[i]);
        work.lses[i] = merge_rows(arguments.lses[i]);
    }
    return work;
}

} // namespace

void run_merge(annulus_context &context, const MergeArguments &arguments) {
    if (context.backend->device == ANNULUS_DEVICE_CUDA && arguments.problem.dtype == ANNULUS_FLOAT64)
        throw Error(ANNULUS_ERROR_UNSUPPORTED,
                    "dtype of outs[0] is float64; on a CUDA device it must be float32, bfloat16 or float16");
    check_overlaps(arguments);
    const DeviceScope scope(*context.device);
    for_each_input(arguments, [&](const NamedTensor &input) { check_memory(*context.device, input); });
    check_memory(*context.device, {"out", &arguments.out});
    check_memory(*context.device, {"lse", arguments.lse});
    if (arguments.problem.queries.length > 0)
        context.backend->merge(merge_work(arguments), context.thread_limit(), context.stream);
}

} // namespace annulus
