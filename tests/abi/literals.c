/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers that programs compile in, for ABI 1: enumerators, constants, the values of the _INIT macros, and offsets
 * of structs' fields. The offsets are for machines with 64-bit pointers. A line may be added, none may change. The file
 * also compiles without warnings in every language of callers (tests/headers).
 */
#include <annulus/annulus.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct literal {
    const char *name;
    size_t is;
    size_t was;
};

struct number {
    const char *name;
    int is;
    int was;
};

static const struct number numbers[] = {
    /* annulus_feature */
    {"ANNULUS_FEATURE_FEATURE", ANNULUS_FEATURE_FEATURE, 1},
    {"ANNULUS_FEATURE_STATUS", ANNULUS_FEATURE_STATUS, 2},
    {"ANNULUS_FEATURE_DTYPE", ANNULUS_FEATURE_DTYPE, 3},
    {"ANNULUS_FEATURE_DEVICE", ANNULUS_FEATURE_DEVICE, 4},
    {"ANNULUS_FEATURE_ENGINE", ANNULUS_FEATURE_ENGINE, 5},
    {"ANNULUS_FEATURE_PASS", ANNULUS_FEATURE_PASS, 6},
    {"ANNULUS_FEATURE_PHASE_RULE", ANNULUS_FEATURE_PHASE_RULE, 7},
    {"ANNULUS_FEATURE_QUERY_RULE", ANNULUS_FEATURE_QUERY_RULE, 8},
    {"ANNULUS_FEATURE_ORDER", ANNULUS_FEATURE_ORDER, 9},
    {"ANNULUS_FEATURE_PADDING_RULE", ANNULUS_FEATURE_PADDING_RULE, 10},
    {"ANNULUS_FEATURE_KEY_RULE", ANNULUS_FEATURE_KEY_RULE, 11},
    {"ANNULUS_FEATURE_EXCHANGE", ANNULUS_FEATURE_EXCHANGE, 12},
    {"ANNULUS_FEATURE_CALL_FLAG", ANNULUS_FEATURE_CALL_FLAG, 13},
    {"ANNULUS_FEATURE_COMM_FLAG", ANNULUS_FEATURE_COMM_FLAG, 14},
    {"ANNULUS_FEATURE_BRANCH_KIND", ANNULUS_FEATURE_BRANCH_KIND, 15},
    /* annulus_status */
    {"ANNULUS_OK", ANNULUS_OK, 0},
    {"ANNULUS_ERROR_ARGUMENT", ANNULUS_ERROR_ARGUMENT, 1},
    {"ANNULUS_ERROR_UNSUPPORTED", ANNULUS_ERROR_UNSUPPORTED, 2},
    {"ANNULUS_ERROR_MEMORY", ANNULUS_ERROR_MEMORY, 3},
    {"ANNULUS_ERROR_WORKSPACE", ANNULUS_ERROR_WORKSPACE, 4},
    {"ANNULUS_ERROR_DECLINED", ANNULUS_ERROR_DECLINED, 5},
    {"ANNULUS_ERROR_DEVICE", ANNULUS_ERROR_DEVICE, 100},
    {"ANNULUS_ERROR_COMM", ANNULUS_ERROR_COMM, 101},
    {"ANNULUS_ERROR_COMM_LIBRARY", ANNULUS_ERROR_COMM_LIBRARY, 102},
    {"ANNULUS_ERROR_INTERNAL", ANNULUS_ERROR_INTERNAL, 103},
    /* annulus_dtype */
    {"ANNULUS_DTYPE_NONE", ANNULUS_DTYPE_NONE, 0},
    {"ANNULUS_FLOAT64", ANNULUS_FLOAT64, 1},
    {"ANNULUS_FLOAT32", ANNULUS_FLOAT32, 2},
    {"ANNULUS_BFLOAT16", ANNULUS_BFLOAT16, 3},
    {"ANNULUS_FLOAT16", ANNULUS_FLOAT16, 4},
    /* annulus_phase_rule */
    {"ANNULUS_PHASE_BLOCK", ANNULUS_PHASE_BLOCK, 0},
    {"ANNULUS_PHASE_INTERLEAVE", ANNULUS_PHASE_INTERLEAVE, 1},
    {"ANNULUS_PHASE_FIXED", ANNULUS_PHASE_FIXED, 2},
    /* annulus_query_rule */
    {"ANNULUS_QUERY_DILATED", ANNULUS_QUERY_DILATED, 0},
    {"ANNULUS_QUERY_RESIDUE", ANNULUS_QUERY_RESIDUE, 1},
    {"ANNULUS_QUERY_EVERY", ANNULUS_QUERY_EVERY, 2},
    /* annulus_order */
    {"ANNULUS_ORDER_LINEAR", ANNULUS_ORDER_LINEAR, 0},
    {"ANNULUS_ORDER_HILBERT", ANNULUS_ORDER_HILBERT, 1},
    /* annulus_branch_kind */
    {"ANNULUS_BRANCH_SEGMENTS", ANNULUS_BRANCH_SEGMENTS, 0},
    {"ANNULUS_BRANCH_WINDOW", ANNULUS_BRANCH_WINDOW, 1},
    {"ANNULUS_BRANCH_GLOBAL", ANNULUS_BRANCH_GLOBAL, 2},
    /* annulus_padding_rule */
    {"ANNULUS_PADDING_EXACT", ANNULUS_PADDING_EXACT, 0},
    {"ANNULUS_PADDING_ZERO_KEYS", ANNULUS_PADDING_ZERO_KEYS, 1},
    /* annulus_key_rule */
    {"ANNULUS_KEY_EACH_BRANCH", ANNULUS_KEY_EACH_BRANCH, 0},
    {"ANNULUS_KEY_ONCE", ANNULUS_KEY_ONCE, 1},
    /* annulus_engine */
    {"ANNULUS_ENGINE_AUTO", ANNULUS_ENGINE_AUTO, 0},
    {"ANNULUS_ENGINE_REFERENCE", ANNULUS_ENGINE_REFERENCE, 1},
    {"ANNULUS_ENGINE_CPU", ANNULUS_ENGINE_CPU, 2},
    {"ANNULUS_ENGINE_GEMM", ANNULUS_ENGINE_GEMM, 3},
    {"ANNULUS_ENGINE_FUSED", ANNULUS_ENGINE_FUSED, 4},
    {"ANNULUS_ENGINE_MMA", ANNULUS_ENGINE_MMA, 5},
    /* annulus_exchange */
    {"ANNULUS_EXCHANGE_AUTO", ANNULUS_EXCHANGE_AUTO, 0},
    {"ANNULUS_EXCHANGE_RING", ANNULUS_EXCHANGE_RING, 1},
    {"ANNULUS_EXCHANGE_GATHER", ANNULUS_EXCHANGE_GATHER, 2},
    /* annulus_device */
    {"ANNULUS_DEVICE_CPU", ANNULUS_DEVICE_CPU, 1},
    {"ANNULUS_DEVICE_CUDA", ANNULUS_DEVICE_CUDA, 2},
    /* annulus_call_flag */
    {"ANNULUS_CALL_QUERY_WINDOW", ANNULUS_CALL_QUERY_WINDOW, 1},
    {"ANNULUS_CALL_ADD_D_Q", ANNULUS_CALL_ADD_D_Q, 2},
    {"ANNULUS_CALL_ADD_D_K", ANNULUS_CALL_ADD_D_K, 4},
    {"ANNULUS_CALL_ADD_D_V", ANNULUS_CALL_ADD_D_V, 8},
    /* annulus_pass */
    {"ANNULUS_PASS_FORWARD", ANNULUS_PASS_FORWARD, 1},
    {"ANNULUS_PASS_BACKWARD", ANNULUS_PASS_BACKWARD, 2},
    {"ANNULUS_PASS_MASS", ANNULUS_PASS_MASS, 3},
    /* annulus_comm_flag */
    {"ANNULUS_COMM_MAY_ABORT", ANNULUS_COMM_MAY_ABORT, 1},
    {"ANNULUS_COMM_ONLY_NCCL", ANNULUS_COMM_ONLY_NCCL, 2},
    /* constants */
    {"ANNULUS_MAX_MERGE_PARTS", ANNULUS_MAX_MERGE_PARTS, 48},
    {"ANNULUS_ALL_BRANCHES", ANNULUS_ALL_BRANCHES, -1},
    {"ANNULUS_MAX_SHARDS", ANNULUS_MAX_SHARDS, 65536},
};

static const struct literal layouts[] = {
    {"sizeof annulus_tensor", sizeof(annulus_tensor), 80},
    {"annulus_tensor.data", offsetof(annulus_tensor, data), 0},
    {"annulus_tensor.dtype", offsetof(annulus_tensor, dtype), 8},
    {"annulus_tensor.ndim", offsetof(annulus_tensor, ndim), 12},
    {"annulus_tensor.shape", offsetof(annulus_tensor, shape), 16},
    {"annulus_tensor.stride", offsetof(annulus_tensor, stride), 48},
    {"sizeof annulus_branch", sizeof(annulus_branch), 104},
    {"annulus_branch.size", offsetof(annulus_branch, size), 0},
    {"annulus_branch.segment_length", offsetof(annulus_branch, segment_length), 8},
    {"annulus_branch.dilation", offsetof(annulus_branch, dilation), 16},
    {"annulus_branch.residue", offsetof(annulus_branch, residue), 24},
    {"annulus_branch.grid_width", offsetof(annulus_branch, grid_width), 32},
    {"annulus_branch.first_head", offsetof(annulus_branch, first_head), 40},
    {"annulus_branch.head_count", offsetof(annulus_branch, head_count), 44},
    {"annulus_branch.phase_rule", offsetof(annulus_branch, phase_rule), 48},
    {"annulus_branch.query_rule", offsetof(annulus_branch, query_rule), 52},
    {"annulus_branch.order", offsetof(annulus_branch, order), 56},
    {"annulus_branch.left", offsetof(annulus_branch, left), 64},
    {"annulus_branch.right", offsetof(annulus_branch, right), 72},
    {"annulus_branch.first_global", offsetof(annulus_branch, first_global), 80},
    {"annulus_branch.global_count", offsetof(annulus_branch, global_count), 88},
    {"annulus_branch.kind", offsetof(annulus_branch, kind), 96},
    {"annulus_branch.global_queries", offsetof(annulus_branch, global_queries), 100},
    {"sizeof annulus_allocator", sizeof(annulus_allocator), 32},
    {"annulus_allocator.size", offsetof(annulus_allocator, size), 0},
    {"annulus_allocator.allocate", offsetof(annulus_allocator, allocate), 8},
    {"annulus_allocator.release", offsetof(annulus_allocator, release), 16},
    {"annulus_allocator.user", offsetof(annulus_allocator, user), 24},
    {"sizeof annulus_call_options", sizeof(annulus_call_options), 48},
    {"annulus_call_options.size", offsetof(annulus_call_options, size), 0},
    {"annulus_call_options.flags", offsetof(annulus_call_options, flags), 8},
    {"annulus_call_options.query_start", offsetof(annulus_call_options, query_start), 16},
    {"annulus_call_options.sequence_count", offsetof(annulus_call_options, sequence_count), 24},
    {"annulus_call_options.sequence_starts", offsetof(annulus_call_options, sequence_starts), 32},
    {"annulus_call_options.sequence_lengths", offsetof(annulus_call_options, sequence_lengths), 40},
    {"sizeof annulus_merge_options", sizeof(annulus_merge_options), 16},
    {"annulus_merge_options.size", offsetof(annulus_merge_options, size), 0},
    {"annulus_merge_options.flags", offsetof(annulus_merge_options, flags), 8},
    {"sizeof annulus_problem", sizeof(annulus_problem), 72},
    {"annulus_problem.size", offsetof(annulus_problem, size), 0},
    {"annulus_problem.dtype", offsetof(annulus_problem, dtype), 8},
    {"annulus_problem.gradient_dtype", offsetof(annulus_problem, gradient_dtype), 12},
    {"annulus_problem.heads", offsetof(annulus_problem, heads), 16},
    {"annulus_problem.kv_heads", offsetof(annulus_problem, kv_heads), 20},
    {"annulus_problem.head_dim", offsetof(annulus_problem, head_dim), 24},
    {"annulus_problem.batch", offsetof(annulus_problem, batch), 32},
    {"annulus_problem.sequence_length", offsetof(annulus_problem, sequence_length), 40},
    {"annulus_problem.query_length", offsetof(annulus_problem, query_length), 48},
    {"annulus_problem.row_alignment", offsetof(annulus_problem, row_alignment), 56},
    {"annulus_problem.options", offsetof(annulus_problem, options), 64},
    {"sizeof annulus_estimate", sizeof(annulus_estimate), 80},
    {"annulus_estimate.size", offsetof(annulus_estimate, size), 0},
    {"annulus_estimate.pairs", offsetof(annulus_estimate, pairs), 8},
    {"annulus_estimate.flops", offsetof(annulus_estimate, flops), 16},
    {"annulus_estimate.tensor_bytes", offsetof(annulus_estimate, tensor_bytes), 24},
    {"annulus_estimate.workspace_bytes", offsetof(annulus_estimate, workspace_bytes), 32},
    {"annulus_estimate.sent_bytes", offsetof(annulus_estimate, sent_bytes), 40},
    {"annulus_estimate.received_bytes", offsetof(annulus_estimate, received_bytes), 48},
    {"annulus_estimate.plan_bytes", offsetof(annulus_estimate, plan_bytes), 56},
    {"annulus_estimate.exchange", offsetof(annulus_estimate, exchange), 64},
    {"annulus_estimate.received_messages", offsetof(annulus_estimate, received_messages), 72},
    {"sizeof annulus_comm_options", sizeof(annulus_comm_options), 24},
    {"annulus_comm_options.size", offsetof(annulus_comm_options, size), 0},
    {"annulus_comm_options.creation_timeout", offsetof(annulus_comm_options, creation_timeout), 8},
    {"annulus_comm_options.flags", offsetof(annulus_comm_options, flags), 16},
    {"sizeof annulus_nccl_id", sizeof(annulus_nccl_id), 128},
    {"annulus_nccl_id.bytes", offsetof(annulus_nccl_id, bytes), 0},
    {"sizeof annulus_shards", sizeof(annulus_shards), 32},
    {"annulus_shards.size", offsetof(annulus_shards, size), 0},
    {"annulus_shards.ranks", offsetof(annulus_shards, ranks), 8},
    {"annulus_shards.count", offsetof(annulus_shards, count), 12},
    {"annulus_shards.lengths", offsetof(annulus_shards, lengths), 16},
    {"annulus_shards.owners", offsetof(annulus_shards, owners), 24},
    {"sizeof annulus_traffic", sizeof(annulus_traffic), 24},
    {"annulus_traffic.size", offsetof(annulus_traffic, size), 0},
    {"annulus_traffic.sent_bytes", offsetof(annulus_traffic, sent_bytes), 8},
    {"annulus_traffic.received_bytes", offsetof(annulus_traffic, received_bytes), 16},
};

static char zeros[256];

static int check(const char *name, int holds) {
    if (!holds)
        printf("%s\n", name);
    return holds ? 0 : 1;
}

/* Checks that a struct made by its _INIT macro is 0 after its size. Changes the struct. */
#define CHECK_ZERO(value)                                                                                              \
    check(#value, value.size == sizeof value && (value.size = 0, memcmp(&value, zeros, sizeof value) == 0))

int main(void) {
    static annulus_branch branch = ANNULUS_BRANCH_INIT(5792, 2);
    static annulus_branch window = ANNULUS_BRANCH_WINDOW_INIT(255, -1, 2);
    static annulus_branch tokens = ANNULUS_BRANCH_GLOBAL_INIT(7, 16);
    static annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
    static annulus_call_options call_options = ANNULUS_CALL_OPTIONS_INIT;
    static annulus_merge_options merge_options = ANNULUS_MERGE_OPTIONS_INIT;
    static annulus_problem problem = ANNULUS_PROBLEM_INIT;
    static annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    static annulus_comm_options comm_options = ANNULUS_COMM_OPTIONS_INIT;
    static annulus_shards shards = ANNULUS_SHARDS_INIT;
    static annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    int failures = 0;
    size_t i;
    for (i = 0; i < sizeof numbers / sizeof *numbers; ++i)
        failures += check(numbers[i].name, numbers[i].is == numbers[i].was);
    for (i = 0; sizeof(void *) == 8 && i < sizeof layouts / sizeof *layouts; ++i)
        failures += check(layouts[i].name, layouts[i].is == layouts[i].was);
    failures += check("size of branch", branch.size == sizeof branch);
    failures += check("branch", branch.segment_length == 5792 && branch.dilation == 2);
    branch.size = 0;
    branch.segment_length = branch.dilation = 0;
    failures += check("branch", memcmp(&branch, zeros, sizeof branch) == 0);
    failures += check("size of window", window.size == sizeof window);
    failures += check("window", window.left == 255 && window.right == -1 && window.dilation == 2 &&
                                    window.query_rule == 1 && window.kind == 1);
    window.size = 0;
    window.left = window.right = window.dilation = 0;
    window.query_rule = ANNULUS_QUERY_DILATED;
    window.kind = ANNULUS_BRANCH_SEGMENTS;
    failures += check("window", memcmp(&window, zeros, sizeof window) == 0);
    failures += check("size of global", tokens.size == sizeof tokens);
    failures += check("global", tokens.first_global == 7 && tokens.global_count == 16 && tokens.dilation == 1 &&
                                    tokens.kind == 2);
    tokens.size = 0;
    tokens.first_global = tokens.global_count = tokens.dilation = 0;
    tokens.kind = ANNULUS_BRANCH_SEGMENTS;
    failures += check("global", memcmp(&tokens, zeros, sizeof tokens) == 0);
    failures += CHECK_ZERO(allocator);
    failures += CHECK_ZERO(call_options);
    failures += CHECK_ZERO(merge_options);
    failures += CHECK_ZERO(problem);
    failures += CHECK_ZERO(estimate);
    failures += CHECK_ZERO(comm_options);
    failures += CHECK_ZERO(shards);
    failures += CHECK_ZERO(traffic);
    return failures;
}
