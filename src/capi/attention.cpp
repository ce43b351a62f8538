// SPDX-License-Identifier: Apache-2.0
// annulus/attention.h: from the caller's tensors or sizes to a checked problem, its plan, an engine and a workspace.
// Everything is checked before anything is written.
#include <annulus/attention.h>

#include "capi/argument.hpp"
#include "capi/context.hpp"
#include "capi/guard.hpp"
#include "capi/sized_struct.hpp"
#include "core/dtype_number.hpp"
#include "core/plan.hpp"
#include "core/tensor.hpp"
#include "engine/engine.hpp"

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>

using namespace annulus;

namespace {

constexpr std::int32_t max_heads = std::numeric_limits<std::int32_t>::max();

void check_head_dim(const char *name, std::int64_t head_dim) {
    check_at_least(name, head_dim, 1);
    if (head_dim % 8 != 0 || head_dim > 256)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "%s is %lld; the head dimension must be a multiple of 8 from 8 to 256",
                    name, static_cast<long long>(head_dim));
}

void check_head_groups(const char *name, std::int64_t kv_heads, std::int64_t heads) {
    check_at_least(name, kv_heads, 1);
    if (heads % kv_heads != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %lld; the key/value heads must divide the %lld query heads", name,
                    static_cast<long long>(kv_heads), static_cast<long long>(heads));
}

// With no more elements in a whole tensor, the bytes of all tensors, gradients and float64 copies together fit into 64
// bits, and whoever computes sizes of a checked problem need not think of overflow.
void check_element_count(const Problem &problem) {
    constexpr std::int64_t most = std::int64_t{1} << 57;
    std::int64_t elements = problem.batch;
    for (const std::int64_t size :
         {problem.sequence_length, std::int64_t{problem.heads}, std::int64_t{problem.head_dim}})
        if (__builtin_mul_overflow(elements, size, &elements) || elements > most)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "batch %lld, sequence length %lld, heads %d and head dimension %d together are too large: "
                        "2^57 elements are the limit",
                        static_cast<long long>(problem.batch), static_cast<long long>(problem.sequence_length),
                        problem.heads, problem.head_dim);
}

void check_rank4(const NamedTensor &argument) {
    if (argument.tensor->rank != 4)
        throw Error(ANNULUS_ERROR_ARGUMENT, "rank of %s is %d; it must be 4", argument.name, argument.tensor->rank);
}

// q says what B, Nq, H, D and the dtype are, k what N and G are; v must follow.
Problem check_inputs(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor &v,
                     const annulus_window *window) {
    check_enum("dtype of q", q.dtype, ANNULUS_FLOAT64, ANNULUS_FLOAT16);
    check_rank4({"q", &q});
    check_tensor({"q", &q}, q.dtype, {q.shape[0], q.shape[1], q.shape[2], q.shape[3]}, true);
    check_between("shape[2] of q", q.shape[2], 1, max_heads);
    check_head_dim("shape[3] of q", q.shape[3]);
    check_rank4({"k", &k});
    check_tensor({"k", &k}, q.dtype, {q.shape[0], k.shape[1], k.shape[2], q.shape[3]}, true);
    check_head_groups("shape[2] of k", k.shape[2], q.shape[2]);
    check_tensor({"v", &v}, q.dtype, {q.shape[0], k.shape[1], k.shape[2], q.shape[3]}, true);

    const std::int64_t queries = q.shape[1];
    const std::int64_t keys = k.shape[1];
    std::int64_t query_start = 0;
    if (window) {
        query_start = read_sized("window", window, &annulus_window::query_start).query_start;
        if (query_start < 0 || queries > keys || query_start > keys - queries)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "query_start of window is %lld; with the %lld rows of q it must lie within the %lld rows of k",
                        static_cast<long long>(query_start), static_cast<long long>(queries),
                        static_cast<long long>(keys));
    } else if (queries != keys) {
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "shape[1] of q is %lld and shape[1] of k is %lld; without a window they must be equal",
                    static_cast<long long>(queries), static_cast<long long>(keys));
    }

    Problem problem;
    problem.dtype = q.dtype;
    problem.batch = q.shape[0];
    problem.sequence_length = keys;
    problem.heads = static_cast<std::int32_t>(q.shape[2]);
    problem.kv_heads = static_cast<std::int32_t>(k.shape[2]);
    problem.head_dim = static_cast<std::int32_t>(q.shape[3]);
    problem.queries = {query_start, queries};
    problem.keys = {0, keys};
    check_element_count(problem);
    return problem;
}

// The other tensors of a call, by their role.
void check_query_rows(const Problem &problem, const NamedTensor &argument) {
    check_tensor(argument, problem.dtype, {problem.batch, problem.queries.length, problem.heads, problem.head_dim},
                 true);
}

void check_key_rows(const Problem &problem, const NamedTensor &argument) {
    check_tensor(argument, problem.dtype, {problem.batch, problem.keys.length, problem.kv_heads, problem.head_dim},
                 true);
}

annulus_dtype statistic_dtype(const Problem &problem) {
    return problem.dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32;
}

void check_statistic(const Problem &problem, const NamedTensor &argument) {
    check_tensor(argument, statistic_dtype(problem), {problem.batch, problem.heads, problem.queries.length}, false);
}

void check_window(const char *name, const Window &window, std::int64_t sequence_length) {
    if (window.start < 0 || window.length < 0 || window.length > sequence_length ||
        window.start > sequence_length - window.length)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "%s_start is %lld and %s_length is %lld; they must lie within sequence_length %lld", name,
                    static_cast<long long>(window.start), name, static_cast<long long>(window.length),
                    static_cast<long long>(sequence_length));
}

Problem check_problem(const annulus_problem *argument) {
    const annulus_problem given = read_sized("problem", argument, &annulus_problem::key_length);
    check_enum("dtype", given.dtype, ANNULUS_FLOAT64, ANNULUS_FLOAT16);
    check_at_least("heads", given.heads, 1);
    check_head_groups("kv_heads", given.kv_heads, given.heads);
    check_head_dim("head_dim", given.head_dim);
    check_at_least("batch", given.batch, 1);
    check_at_least("sequence_length", given.sequence_length, 1);
    Problem problem;
    problem.dtype = given.dtype;
    problem.batch = given.batch;
    problem.sequence_length = given.sequence_length;
    problem.heads = given.heads;
    problem.kv_heads = given.kv_heads;
    problem.head_dim = given.head_dim;
    problem.queries = {given.query_start, given.query_length};
    problem.keys = {given.key_start, given.key_length};
    check_window("query", problem.queries, problem.sequence_length);
    check_window("key", problem.keys, problem.sequence_length);
    check_element_count(problem);
    return problem;
}

// Who serves a pass of a plan, with what and how much memory.
struct Service {
    Resources resources;
    const Engine &engine;
    std::size_t workspace_bytes;

    Service(const annulus_context &context, const Plan &plan, annulus_pass pass)
        : resources(context.resources()),
          engine(choose_engine(context.kind, context.required_config().execution.engine, plan, pass, resources)),
          workspace_bytes(engine.workspace_bytes(plan, pass, resources)) {
        const std::uint64_t limit = context.required_config().execution.workspace_limit;
        if (limit != 0 && announced() > limit)
            throw Error(ANNULUS_ERROR_MEMORY,
                        "engine %s needs %zu bytes of workspace for this; the config's workspace limit is %llu",
                        engine_name(engine.id), announced(), static_cast<unsigned long long>(limit));
    }

    std::size_t announced() const { return CallMemory::announced(workspace_bytes); }
};

void check_memory(const Device &device, std::initializer_list<NamedTensor> arguments) {
    for (const NamedTensor &argument : arguments) {
        if (!argument.tensor)
            continue;
        char name[32];
        std::snprintf(name, sizeof name, "data of %s", argument.name);
        device.check_memory(name, argument.tensor->data);
    }
}

// Checks where the tensors of a call lie, each of which was checked for itself, and finds who computes it and the
// memory for it; `compute` then runs the engine.
template <class Compute>
void run(annulus_context &context, const Problem &problem, annulus_pass pass, std::initializer_list<NamedTensor> inputs,
         std::initializer_list<NamedTensor> outputs, const Compute &compute) {
    check_overlap(inputs, outputs);
    const DeviceScope scope(*context.device);
    check_memory(*context.device, inputs);
    check_memory(*context.device, outputs);
    const Plan &plan = context.plan_for(problem);
    const Service service(context, plan, pass);
    const CallMemory memory(context, service.workspace_bytes);
    Workspace workspace(memory.data());
    compute(service.engine, plan, workspace, service.resources);
    context.last_engine = service.engine.id;
}

} // namespace

annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                               const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                               const annulus_window *window) {
    return guard([&] {
        required(context, "context").required_config();
        required(q, "q");
        required(k, "k");
        required(v, "v");
        required(out, "out");
        const Problem problem = check_inputs(*q, *k, *v, window);
        check_query_rows(problem, {"out", out});
        if (lse)
            check_statistic(problem, {"lse", lse});
        const ForwardTensors tensors{*q, *k, *v, *out, lse};
        run(*context, problem, ANNULUS_PASS_FORWARD, {{"q", q}, {"k", k}, {"v", v}}, {{"out", out}, {"lse", lse}},
            [&](const Engine &engine, const Plan &plan, Workspace &workspace, const Resources &resources) {
                engine.forward(plan, tensors, workspace, resources);
            });
    });
}

annulus_status annulus_backward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                                const annulus_tensor *d_out, const annulus_tensor *d_lse, const annulus_tensor *d_q,
                                const annulus_tensor *d_k, const annulus_tensor *d_v, const annulus_window *window) {
    return guard([&] {
        required(context, "context").required_config();
        required(q, "q");
        required(k, "k");
        required(v, "v");
        required(out, "out");
        required(lse, "lse");
        required(d_out, "d_out");
        required(d_q, "d_q");
        required(d_k, "d_k");
        required(d_v, "d_v");
        const Problem problem = check_inputs(*q, *k, *v, window);
        check_query_rows(problem, {"out", out});
        check_statistic(problem, {"lse", lse});
        check_query_rows(problem, {"d_out", d_out});
        if (d_lse)
            check_statistic(problem, {"d_lse", d_lse});
        check_query_rows(problem, {"d_q", d_q});
        check_key_rows(problem, {"d_k", d_k});
        check_key_rows(problem, {"d_v", d_v});
        const BackwardTensors tensors{*q, *k, *v, *out, *lse, *d_out, d_lse, *d_q, *d_k, *d_v};
        run(*context, problem, ANNULUS_PASS_BACKWARD,
            {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}, {"d_out", d_out}, {"d_lse", d_lse}},
            {{"d_q", d_q}, {"d_k", d_k}, {"d_v", d_v}},
            [&](const Engine &engine, const Plan &plan, Workspace &workspace, const Resources &resources) {
                engine.backward(plan, tensors, workspace, resources);
            });
    });
}

annulus_status annulus_estimate_problem(annulus_context *context, const annulus_problem *problem, int32_t branch,
                                        annulus_estimate *estimate) {
    return guard([&] {
        const annulus_config &config = required(context, "context").required_config();
        const Problem checked = check_problem(problem);
        const auto branches = static_cast<std::int64_t>(config.pattern.branches.size());
        check_between("branch", branch, ANNULUS_ALL_BRANCHES, branches - 1);
        annulus_estimate result = read_sized("estimate", estimate, &annulus_estimate::plan_bytes);

        const Plan &plan = context->plan_for(checked);
        const std::int64_t query_elements = checked.batch * checked.queries.length * checked.heads * checked.head_dim;
        const std::int64_t key_elements = checked.batch * checked.keys.length * checked.kv_heads * checked.head_dim;
        const auto row_bytes =
            static_cast<std::uint64_t>(2 * (query_elements + key_elements) * dtype_bytes(checked.dtype));
        const auto statistic_bytes =
            static_cast<std::uint64_t>(query_elements / checked.head_dim * dtype_bytes(statistic_dtype(checked)));
        result.pairs = plan.pairs(branch);
        result.forward_flops = 4.0 * result.pairs * checked.head_dim;
        result.backward_flops = 10.0 * result.pairs * checked.head_dim;
        result.tensor_bytes = row_bytes + statistic_bytes;
        result.gradient_bytes = row_bytes;
        result.forward_workspace_bytes = Service(*context, plan, ANNULUS_PASS_FORWARD).announced();
        result.backward_workspace_bytes = Service(*context, plan, ANNULUS_PASS_BACKWARD).announced();
        result.remote_bytes = static_cast<std::uint64_t>(plan.remote_bytes(branch));
        result.plan_bytes = plan.bytes();
        write_sized(estimate, result);
    });
}

annulus_status annulus_workspace_size(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                      uint64_t *bytes) {
    return guard([&] {
        required(context, "context").required_config();
        check_enum("pass", pass, ANNULUS_PASS_FORWARD, ANNULUS_PASS_BACKWARD);
        required(bytes, "bytes");
        const Plan &plan = context->plan_for(check_problem(problem));
        *bytes = Service(*context, plan, pass).announced();
    });
}
