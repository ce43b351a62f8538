// SPDX-License-Identifier: Apache-2.0
#include "capi/problem.hpp"

#include "call/mass_executable.hpp"
#include "capi/options.hpp"
#include "capi/sized_struct.hpp"
#include "core/argument.hpp"
#include "core/dtype_number.hpp"

#include <cstdint>
#include <cstdio>
#include <limits>

namespace annulus {

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

} // namespace

namespace {

void check_rank4(const NamedTensor &argument) {
    if (argument.tensor->ndim != 4)
        throw Error(ANNULUS_ERROR_ARGUMENT, "ndim of %s is %d; it must be 4", argument.name, argument.tensor->ndim);
}

// Checks the tensor of queries or results that determines the sizes of the other tensors.
void check_leading_tensor(const NamedTensor &argument, bool may_be_empty) {
    const annulus_tensor &tensor = *argument.tensor;
    char name[32];
    std::snprintf(name, sizeof name, "dtype of %s", argument.name);
    check_enum(name, tensor.dtype);
    check_rank4(argument);
    const std::int64_t *const shape = tensor.shape;
    check_tensor(argument, tensor.dtype, {shape[0], shape[1], shape[2], shape[3]}, true, may_be_empty);
    std::snprintf(name, sizeof name, "shape[0] of %s", argument.name);
    check_at_least(name, shape[0], 1);
    std::snprintf(name, sizeof name, "shape[2] of %s", argument.name);
    check_between(name, shape[2], 1, max_heads);
    std::snprintf(name, sizeof name, "shape[3] of %s", argument.name);
    check_head_dim(name, shape[3]);
}

} // namespace

Problem check_inputs(const annulus_tensor &q, const annulus_tensor &k, const annulus_tensor &v,
                     std::optional<std::int64_t> query_start, bool may_be_empty) {
    check_leading_tensor({"q", &q}, may_be_empty);
    check_rank4({"k", &k});
    check_tensor({"k", &k}, q.dtype, {q.shape[0], k.shape[1], k.shape[2], q.shape[3]}, true, may_be_empty);
    check_head_groups("shape[2] of k", k.shape[2], q.shape[2]);
    check_tensor({"v", &v}, q.dtype, {q.shape[0], k.shape[1], k.shape[2], q.shape[3]}, true, may_be_empty);

    const std::int64_t queries = q.shape[1];
    const std::int64_t keys = k.shape[1];
    if (query_start) {
        if (*query_start < 0 || queries > keys || *query_start > keys - queries)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "query_start of options is %lld; with the %lld rows of q it must lie within the %lld rows of k",
                        static_cast<long long>(*query_start), static_cast<long long>(queries),
                        static_cast<long long>(keys));
    } else if (queries != keys) {
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "shape[1] of q is %lld and shape[1] of k is %lld; without a query window they must be equal",
                    static_cast<long long>(queries), static_cast<long long>(keys));
    }

    Problem problem;
    problem.dtype = q.dtype;
    problem.batch = q.shape[0];
    problem.sequence_length = keys;
    problem.heads = static_cast<std::int32_t>(q.shape[2]);
    problem.kv_heads = static_cast<std::int32_t>(k.shape[2]);
    problem.head_dim = static_cast<std::int32_t>(q.shape[3]);
    problem.queries = {query_start.value_or(0), queries};
    problem.keys = {0, keys};
    check_element_count(problem);
    return problem;
}

Problem check_results(const NamedTensor &out) {
    check_leading_tensor(out, true);
    const annulus_tensor &tensor = *out.tensor;
    Problem problem;
    problem.dtype = tensor.dtype;
    problem.batch = tensor.shape[0];
    problem.sequence_length = tensor.shape[1];
    problem.heads = problem.kv_heads = static_cast<std::int32_t>(tensor.shape[2]);
    problem.head_dim = static_cast<std::int32_t>(tensor.shape[3]);
    problem.queries = {0, tensor.shape[1]};
    check_element_count(problem);
    return problem;
}

namespace {

// Checks a tensor [B, rows, heads, D].
void check_rows(const Problem &problem, const NamedTensor &argument, annulus_dtype dtype, std::int64_t rows,
                std::int64_t heads) {
    check_tensor(argument, dtype, {problem.batch, rows, heads, problem.head_dim}, true, rows == 0);
}

void check_gradient(const Problem &problem, const NamedTensor &argument, const GradientTarget &target,
                    std::int64_t rows, std::int64_t heads) {
    const annulus_dtype sum = sum_dtype(problem.dtype);
    const int given = enum_value(argument.tensor->dtype);
    if (sum != problem.dtype && given != sum && given != problem.dtype)
        throw Error(ANNULUS_ERROR_ARGUMENT, "dtype of %s is %d (%s); it must be %d (%s) or %d (%s)", argument.name,
                    given, dtype_name(given), static_cast<int>(problem.dtype), dtype_name(problem.dtype),
                    static_cast<int>(sum), dtype_name(sum));
    check_rows(problem, argument, target.dtype(problem.dtype), rows, heads);
}

} // namespace

void check_query_rows(const Problem &problem, const NamedTensor &argument) {
    check_rows(problem, argument, problem.dtype, problem.queries.length, problem.heads);
}

void check_query_gradient(const Problem &problem, const NamedTensor &argument, const GradientTarget &target) {
    check_gradient(problem, argument, target, problem.queries.length, problem.heads);
}

void check_key_gradient(const Problem &problem, const NamedTensor &argument, const GradientTarget &target) {
    check_gradient(problem, argument, target, problem.keys.length, problem.kv_heads);
}

namespace {

// Checks a tensor [B, H, rows] in the dtype of sums.
void check_head_rows(const Problem &problem, const NamedTensor &argument, std::int64_t rows) {
    check_tensor(argument, sum_dtype(problem.dtype), {problem.batch, problem.heads, rows}, false, rows == 0);
}

} // namespace

void check_statistic(const Problem &problem, const NamedTensor &argument) {
    check_head_rows(problem, argument, problem.queries.length);
}

void check_mass(const Problem &problem, const NamedTensor &argument) {
    check_head_rows(problem, argument, problem.keys.length);
}

namespace {

void check_gradient_dtype(const annulus_problem &given) {
    const annulus_dtype sum = sum_dtype(given.dtype);
    const int dtype = enum_value(given.gradient_dtype);
    if (dtype == 0 || dtype == given.dtype || dtype == sum)
        return;
    char or_float32[32] = "";
    if (sum != given.dtype)
        std::snprintf(or_float32, sizeof or_float32, ", %d (%s)", static_cast<int>(sum), dtype_name(sum));
    throw Error(ANNULUS_ERROR_ARGUMENT, "gradient_dtype is %d (%s); it must be 0, %d (%s)%s", dtype, dtype_name(dtype),
                static_cast<int>(given.dtype), dtype_name(given.dtype), or_float32);
}

// Returns the query rows of a call with these options.
Window check_query_window(const annulus_problem &given, const annulus_call_options &options) {
    const std::int64_t length = given.query_length, rows = given.sequence_length;
    const std::optional<std::int64_t> start = query_window(options);
    if (!start) {
        if (length != 0 && length != rows)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "query_length is %lld; without ANNULUS_CALL_QUERY_WINDOW in flags of options it must be 0 or "
                        "sequence_length, %lld",
                        static_cast<long long>(length), static_cast<long long>(rows));
        return {0, rows};
    }
    if (length < 1 || length > rows)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "query_length is %lld; with ANNULUS_CALL_QUERY_WINDOW in flags of options it must be from 1 to "
                    "sequence_length, %lld",
                    static_cast<long long>(length), static_cast<long long>(rows));
    if (*start < 0 || *start > rows - length)
        throw Error(ANNULUS_ERROR_ARGUMENT,
                    "query_start of options is %lld; with query_length %lld it must be from 0 to %lld, so that the "
                    "queries lie within sequence_length %lld",
                    static_cast<long long>(*start), static_cast<long long>(length),
                    static_cast<long long>(rows - length), static_cast<long long>(rows));
    return {*start, length};
}

} // namespace

StatedProblem check_problem(const annulus_problem *argument, const Pattern &pattern, annulus_pass pass,
                            bool has_ranks) {
    const annulus_problem given = read_sized("problem", argument, &annulus_problem::options);
    check_enum("dtype", given.dtype);
    check_gradient_dtype(given);
    check_at_least("heads", given.heads, 1);
    check_head_groups("kv_heads", given.kv_heads, given.heads);
    check_head_dim("head_dim", given.head_dim);
    check_at_least("batch", given.batch, 1);
    check_at_least("sequence_length", given.sequence_length, 1);
    const std::int64_t alignment = given.row_alignment;
    if (alignment < 0 || alignment > 4096 || (alignment & (alignment - 1)) != 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "row_alignment is %lld; it must be 0 or a power of two from 1 to 4096",
                    static_cast<long long>(alignment));
    const annulus_call_options options = read_options(given.options, pass);
    if (has_ranks && query_window(options))
        refuse_query_window();
    Problem problem;
    problem.dtype = given.dtype;
    problem.batch = given.batch;
    problem.sequence_length = given.sequence_length;
    problem.heads = given.heads;
    problem.kv_heads = given.kv_heads;
    problem.head_dim = given.head_dim;
    problem.queries = check_query_window(given, options);
    problem.keys = {0, given.sequence_length};
    check_element_count(problem);
    if (const annulus_dtype dtype = given.gradient_dtype; pass == ANNULUS_PASS_BACKWARD)
        problem.gradients = gradient_targets(options, problem.dtype, dtype, dtype, dtype);
    else if (pass == ANNULUS_PASS_MASS)
        problem.gradients = mass_gradients(problem.dtype);
    return {{problem, check_sequences(options, given.batch, given.sequence_length, pattern)}, alignment};
}

} // namespace annulus
