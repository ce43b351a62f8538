/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every other argument of every function wrong, one at a time: handles, enumerations, numbers, sized structs, configs
 * that do not fit the problem.
 */
#include "fixture.h"

#include <math.h>
#include <string.h>

#define ARGUMENT ANNULUS_ERROR_ARGUMENT

static void null_handles(void **state) {
    fixture *f = *state;
    annulus_config *config = NULL;
    annulus_engine engine;
    const int64_t lengths[] = {4};
    annulus_context *const context = f->context;
    f->context = NULL;
    assert_call_refused(f, &forward_call, ARGUMENT, "context", "no context");
    assert_call_refused(f, &backward_call, ARGUMENT, "context", "no context");
    f->context = context;

    assert_refused(annulus_config_create(NULL), ARGUMENT, "config");
    assert_refused(annulus_config_copy(NULL, f->config), ARGUMENT, "copy");
    assert_refused(annulus_config_copy(&config, NULL), ARGUMENT, "config");
    assert_null(config);
    assert_refused(annulus_config_add_branch(NULL, 4, 1, NULL), ARGUMENT, "config");
    assert_int_equal(annulus_config_branch_count(NULL), 0);
    assert_refused(annulus_config_set_branch_heads(NULL, 0, 0, 1), ARGUMENT, "config");
    assert_refused(annulus_config_set_branch_phase(NULL, 0, ANNULUS_PHASE_BLOCK, 0), ARGUMENT, "config");
    assert_refused(annulus_config_set_branch_query_rule(NULL, 0, ANNULUS_QUERY_EVERY), ARGUMENT, "config");
    assert_refused(annulus_config_set_branch_order(NULL, 0, ANNULUS_ORDER_LINEAR, 0), ARGUMENT, "config");
    assert_refused(annulus_config_set_padding_rule(NULL, ANNULUS_PADDING_EXACT), ARGUMENT, "config");
    assert_refused(annulus_config_set_causal(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_set_scale(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_set_engine(NULL, ANNULUS_ENGINE_AUTO), ARGUMENT, "config");
    assert_refused(annulus_config_set_allow_tf32(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_set_workspace_limit(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_add_longnet(NULL, 4, 2, 2, 1), ARGUMENT, "config");
    assert_refused(annulus_config_add_gigapath(NULL), ARGUMENT, "config");
    assert_refused(annulus_config_add_head_groups(NULL, 4, 1, lengths, lengths), ARGUMENT, "config");
    assert_refused(annulus_context_create(NULL, ANNULUS_DEVICE_CPU, 0), ARGUMENT, "context");
    assert_refused(annulus_context_set_config(NULL, f->config), ARGUMENT, "context");
    assert_refused(annulus_context_set_config(f->context, NULL), ARGUMENT, "config");
    assert_refused(annulus_context_set_stream(NULL, NULL), ARGUMENT, "context");
    assert_refused(annulus_context_set_allocator(NULL, NULL), ARGUMENT, "context");
    assert_refused(annulus_context_set_workspace(NULL, NULL, 0), ARGUMENT, "context");
    assert_refused(annulus_context_set_threads(NULL, 1), ARGUMENT, "context");
    assert_refused(annulus_context_last_engine(NULL, &engine), ARGUMENT, "context");
    assert_refused(annulus_context_last_engine(f->context, NULL), ARGUMENT, "engine");
    assert_refused(annulus_device_count(ANNULUS_DEVICE_CPU, NULL), ARGUMENT, "count");
}

static void config_numbers(void **state) {
    fixture *f = *state;
    annulus_config *c = f->config;
    int32_t branch = 77;
    assert_refused(annulus_config_add_branch(c, -1, 1, &branch), ARGUMENT, "segment_length");
    assert_refused(annulus_config_add_branch(c, INT64_MIN, 1, &branch), ARGUMENT, "segment_length");
    assert_refused(annulus_config_add_branch(c, 4, 0, &branch), ARGUMENT, "dilation");
    assert_refused(annulus_config_add_branch(c, 4, -3, &branch), ARGUMENT, "dilation");
    assert_int_equal(branch, 77);
    assert_int_equal(annulus_config_branch_count(c), 2);
    const int32_t no_branches[] = {-1, 2, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i) {
        assert_refused(annulus_config_set_branch_heads(c, no_branches[i], 0, 1), ARGUMENT, "branch");
        assert_refused(annulus_config_set_branch_phase(c, no_branches[i], ANNULUS_PHASE_BLOCK, 0), ARGUMENT, "branch");
        assert_refused(annulus_config_set_branch_query_rule(c, no_branches[i], ANNULUS_QUERY_EVERY), ARGUMENT,
                       "branch");
        assert_refused(annulus_config_set_branch_order(c, no_branches[i], ANNULUS_ORDER_LINEAR, 0), ARGUMENT, "branch");
    }
    assert_refused(annulus_config_set_branch_heads(c, 0, -1, 1), ARGUMENT, "first");
    assert_refused(annulus_config_set_branch_heads(c, 0, 0, 0), ARGUMENT, "count");
    assert_refused(annulus_config_set_branch_heads(c, 0, 0, -2), ARGUMENT, "count");
    assert_refused(annulus_config_set_branch_phase(c, 0, ANNULUS_PHASE_FIXED, -1), ARGUMENT, "residue");
    assert_refused(annulus_config_set_branch_phase(c, 0, ANNULUS_PHASE_BLOCK, 1), ARGUMENT, "residue");
    assert_refused(annulus_config_set_branch_phase(c, 0, ANNULUS_PHASE_INTERLEAVE, 1), ARGUMENT, "residue");
    assert_refused(annulus_config_set_branch_order(c, 0, ANNULUS_ORDER_HILBERT, -1), ARGUMENT, "grid_width");
    assert_refused(annulus_config_set_branch_order(c, 0, ANNULUS_ORDER_HILBERT, 4), ARGUMENT, "grid_width"); /* of 6 */
    assert_refused(annulus_config_set_branch_order(c, 0, ANNULUS_ORDER_LINEAR, 3), ARGUMENT, "grid_width");
    assert_refused(annulus_config_set_causal(c, 2), ARGUMENT, "causal");
    assert_refused(annulus_config_set_causal(c, -1), ARGUMENT, "causal");
    assert_refused(annulus_config_set_allow_tf32(c, 2), ARGUMENT, "allow");
    assert_refused(annulus_config_set_allow_tf32(c, -1), ARGUMENT, "allow");
    assert_refused(annulus_config_set_scale(c, (double)NAN), ARGUMENT, "scale");
    assert_refused(annulus_config_set_scale(c, (double)INFINITY), ARGUMENT, "scale");
    assert_refused(annulus_config_set_scale(c, -(double)INFINITY), ARGUMENT, "scale");
    assert_refused(annulus_config_set_scale(c, 1e-46), ARGUMENT, "scale");
    assert_refused(annulus_config_set_scale(c, -1.01e36), ARGUMENT, "scale");
}

static void enumerations(void **state) {
    fixture *f = *state;
    annulus_config *c = f->config;
    annulus_context *context = NULL;
    int32_t count = 77;
    const int unknown[] = {-1, 100, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i) {
        const int n = unknown[i];
        assert_refused(annulus_config_set_branch_phase(c, 0, (annulus_phase_rule)n, 0), ARGUMENT, "rule");
        assert_refused(annulus_config_set_branch_query_rule(c, 0, (annulus_query_rule)n), ARGUMENT, "rule");
        assert_refused(annulus_config_set_branch_order(c, 0, (annulus_order)n, 0), ARGUMENT, "order");
        assert_refused(annulus_config_set_padding_rule(c, (annulus_padding_rule)n), ARGUMENT, "rule");
        assert_refused(annulus_config_set_engine(c, (annulus_engine)n), ARGUMENT, "engine");
        assert_refused(annulus_context_create(&context, (annulus_device)n, 0), ARGUMENT, "device");
        assert_refused(annulus_device_count((annulus_device)n, &count), ARGUMENT, "device");
        assert_string_equal(annulus_engine_name((annulus_engine)n), "unknown");
        assert_string_equal(annulus_status_name((annulus_status)n), "unknown");
        assert_string_equal(annulus_dtype_name((annulus_dtype)n), "unknown");
        assert_int_equal(annulus_dtype_bits((annulus_dtype)n), 0);
    }
    assert_refused(annulus_config_set_branch_phase(c, 0, (annulus_phase_rule)0, 0), ARGUMENT, "rule");
    assert_refused(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 1), ARGUMENT, "index");
    assert_refused(annulus_context_create(&context, ANNULUS_DEVICE_CPU, -1), ARGUMENT, "index");
    assert_null(context);
    assert_int_equal(count, 77);
}

static void presets(void **state) {
    fixture *f = *state;
    annulus_config *c = f->config;
    const int64_t lengths[] = {4, 8}, zero[] = {1, 0}, negative[] = {4, -1};
    assert_refused(annulus_config_add_longnet(c, 0, 2, 2, 2), ARGUMENT, "segment_length");
    assert_refused(annulus_config_add_longnet(c, 4, 0, 2, 2), ARGUMENT, "segment_ratio");
    assert_refused(annulus_config_add_longnet(c, 4, 2, 0, 2), ARGUMENT, "dilation_ratio");
    assert_refused(annulus_config_add_longnet(c, 4, 2, 2, 0), ARGUMENT, "count");
    assert_refused(annulus_config_add_longnet(c, 4, 2, 2, -1), ARGUMENT, "count");
    assert_refused(annulus_config_add_longnet(c, 4, 2, 1, 63), ARGUMENT, NULL); /* w = 2^64 */
    assert_refused(annulus_config_add_longnet(c, 4, 1, 2, 65), ARGUMENT, NULL); /* r = 2^64 */
    assert_refused(annulus_config_add_head_groups(c, 0, 1, lengths, lengths), ARGUMENT, NULL);
    assert_refused(annulus_config_add_head_groups(c, 4, 0, lengths, lengths), ARGUMENT, "count");
    assert_refused(annulus_config_add_head_groups(c, 1, 2, lengths, lengths), ARGUMENT, "count");
    assert_refused(annulus_config_add_head_groups(c, 4, 2, NULL, lengths), ARGUMENT, "segment_lengths");
    assert_refused(annulus_config_add_head_groups(c, 4, 2, lengths, NULL), ARGUMENT, "dilations");
    assert_refused(annulus_config_add_head_groups(c, 4, 2, lengths, zero), ARGUMENT, NULL);
    assert_refused(annulus_config_add_head_groups(c, 4, 2, negative, lengths), ARGUMENT, NULL);
    assert_int_equal(annulus_config_branch_count(c), 2); /* none was half added */
}

static void context_settings(void **state) {
    fixture *f = *state;
    char byte;
    assert_refused(annulus_context_set_threads(f->context, -1), ARGUMENT, "threads");
    assert_refused(annulus_context_set_threads(f->context, 1025), ARGUMENT, "threads");
    assert_ok(annulus_context_set_threads(f->context, 1024));
    assert_ok(annulus_context_set_threads(f->context, 0));
    assert_refused(annulus_context_set_stream(f->context, &byte), ANNULUS_ERROR_UNSUPPORTED, "stream");
    assert_ok(annulus_context_set_stream(f->context, NULL));
    assert_refused(annulus_context_set_workspace(f->context, NULL, 1), ARGUMENT, NULL);

    annulus_config *empty = NULL;
    assert_ok(annulus_config_create(&empty));
    assert_refused(annulus_context_set_config(f->context, empty), ARGUMENT, "config");
    annulus_config_destroy(empty);
    assert_ok(forward_call.run(f)); /* the context has kept its config */
}

static void engines_of_other_devices(void **state) {
    fixture *f = *state;
    const annulus_engine engines[] = {ANNULUS_ENGINE_GEMM, ANNULUS_ENGINE_FUSED};
    for (int i = 0; i < 2; ++i) {
        assert_ok(annulus_config_set_engine(f->config, engines[i]));
        assert_refused(annulus_context_set_config(f->context, f->config), ANNULUS_ERROR_UNSUPPORTED,
                       annulus_engine_name(engines[i]));
    }
    assert_ok(forward_call.run(f)); /* the context has kept its config */
}

static void context_without_config(void **state) {
    fixture *f = *state;
    annulus_context *const configured = f->context;
    const annulus_problem problem = fixture_problem();
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    uint64_t bytes = 77;
    assert_ok(annulus_context_create(&f->context, ANNULUS_DEVICE_CPU, 0));
    assert_call_refused(f, &forward_call, ARGUMENT, "config", "no config");
    assert_call_refused(f, &backward_call, ARGUMENT, "config", "no config");
    assert_refused(annulus_estimate_problem(f->context, &problem, 0, &estimate), ARGUMENT, "config");
    assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, "config");
    assert_int_equal(bytes, 77);
    annulus_context_destroy(f->context);
    f->context = configured;
}

/* Configs that are legal by themselves and do not fit this problem. */
static void config_does_not_fit(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    for (int defect = 0; defect < 3; ++defect) {
        annulus_config *config = NULL;
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        uint64_t bytes = 77;
        assert_ok(annulus_config_copy(&config, f->config));
        if (defect == 0)
            assert_ok(annulus_config_set_branch_heads(config, 1, HEADS - 1, 2));
        else if (defect == 1)
            assert_ok(annulus_config_set_branch_heads(config, 1, 1 << 30, (1 << 30) - 1));
        else {
            assert_ok(annulus_config_add_branch(config, 0, 2, NULL));
            assert_ok(annulus_config_set_branch_order(config, 2, ANNULUS_ORDER_HILBERT, LENGTH - 1));
        }
        assert_ok(annulus_context_set_config(f->context, config));
        assert_call_refused(f, &forward_call, ARGUMENT, NULL, "config");
        assert_call_refused(f, &backward_call, ARGUMENT, NULL, "config");
        assert_refused(annulus_estimate_problem(f->context, &problem, 0, &estimate), ARGUMENT, NULL);
        assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, NULL);
        assert_int_equal(bytes, 77);
        annulus_config_destroy(config);
    }
}

static void problem_fields(void **state) {
    fixture *f = *state;
    static const struct {
        const char *name; /* the argument that the message must name; NULL: any */
        size_t offset;
        int wide;
        int64_t value;
    } wrong[] = {
        {"size", offsetof(annulus_problem, size), 1, 0},
        {"size", offsetof(annulus_problem, size), 1, sizeof(annulus_problem) - 8},
        {"dtype", offsetof(annulus_problem, dtype), 0, 0},
        {"dtype", offsetof(annulus_problem, dtype), 0, 5},
        {"heads", offsetof(annulus_problem, heads), 0, 0},
        {"heads", offsetof(annulus_problem, heads), 0, -4},
        {"kv_heads", offsetof(annulus_problem, heads), 0, 5},
        {"kv_heads", offsetof(annulus_problem, kv_heads), 0, 0},
        {"kv_heads", offsetof(annulus_problem, kv_heads), 0, -2},
        {"kv_heads", offsetof(annulus_problem, kv_heads), 0, 3},
        {"head_dim", offsetof(annulus_problem, head_dim), 0, 0},
        {"head_dim", offsetof(annulus_problem, head_dim), 0, -8},
        {"batch", offsetof(annulus_problem, batch), 1, 0},
        {"batch", offsetof(annulus_problem, batch), 1, -1},
        {NULL, offsetof(annulus_problem, batch), 1, INT64_MAX},
        {"sequence_length", offsetof(annulus_problem, sequence_length), 1, 0},
        {NULL, offsetof(annulus_problem, sequence_length), 1, LENGTH - 1},
        {"query_start", offsetof(annulus_problem, query_start), 1, -1},
        {"query_start", offsetof(annulus_problem, query_start), 1, 1},
        {"query_start", offsetof(annulus_problem, query_start), 1, INT64_MAX},
        {"query_length", offsetof(annulus_problem, query_length), 1, -2},
        {"query_length", offsetof(annulus_problem, query_length), 1, INT64_MIN},
        {"query_length", offsetof(annulus_problem, query_length), 1, LENGTH + 1},
        {"key_start", offsetof(annulus_problem, key_start), 1, -1},
        {"key_start", offsetof(annulus_problem, key_start), 1, 1},
        {"key_length", offsetof(annulus_problem, key_length), 1, -2},
        {"key_length", offsetof(annulus_problem, key_length), 1, INT64_MAX},
        {"row_alignment", offsetof(annulus_problem, row_alignment), 1, -1},
        {"row_alignment", offsetof(annulus_problem, row_alignment), 1, 3},
        {"row_alignment", offsetof(annulus_problem, row_alignment), 1, 8192},
        {"row_alignment", offsetof(annulus_problem, row_alignment), 1, INT64_MIN},
    };
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    const annulus_estimate untouched = estimate;
    uint64_t bytes = 77;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        annulus_problem problem = fixture_problem();
        char *field = (char *)&problem + wrong[i].offset;
        const int32_t narrow = (int32_t)wrong[i].value;
        memcpy(field, wrong[i].wide ? (const void *)&wrong[i].value : (const void *)&narrow, wrong[i].wide ? 8 : 4);
        assert_refused(annulus_estimate_problem(f->context, &problem, -1, &estimate), ARGUMENT, wrong[i].name);
        assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_BACKWARD, &bytes), ARGUMENT,
                       wrong[i].name);
    }
    annulus_problem problem = fixture_problem();
    problem.head_dim = 12;
    assert_refused(annulus_estimate_problem(f->context, &problem, -1, &estimate), ANNULUS_ERROR_UNSUPPORTED,
                   "head_dim");
    assert_memory_equal(&estimate, &untouched, sizeof estimate);
    assert_int_equal(bytes, 77);
}

static void questions_of_cost(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    uint64_t bytes = 77;
    assert_refused(annulus_estimate_problem(NULL, &problem, -1, &estimate), ARGUMENT, "context");
    assert_refused(annulus_estimate_problem(f->context, NULL, -1, &estimate), ARGUMENT, "problem");
    assert_refused(annulus_estimate_problem(f->context, &problem, -1, NULL), ARGUMENT, "estimate");
    assert_refused(annulus_estimate_problem(f->context, &problem, -2, &estimate), ARGUMENT, "branch");
    assert_refused(annulus_estimate_problem(f->context, &problem, 2, &estimate), ARGUMENT, "branch");
    estimate.size = sizeof estimate - 1;
    assert_refused(annulus_estimate_problem(f->context, &problem, -1, &estimate), ARGUMENT, "estimate");
    assert_refused(annulus_workspace_size(NULL, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, "context");
    assert_refused(annulus_workspace_size(f->context, NULL, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT, "problem");
    assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, NULL), ARGUMENT, "bytes");
    assert_refused(annulus_workspace_size(f->context, &problem, (annulus_pass)0, &bytes), ARGUMENT, "pass");
    assert_refused(annulus_workspace_size(f->context, &problem, (annulus_pass)3, &bytes), ARGUMENT, "pass");
    assert_int_equal(bytes, 77);
}

static void allocators(void **state) {
    fixture *f = *state;
    struct {
        annulus_allocator allocator;
        char unknown[8];
    } later = {ANNULUS_ALLOCATOR_INIT, {0}};
    assert_refused(annulus_context_set_allocator(f->context, &later.allocator), ARGUMENT, "allocate");
    later.allocator.size = 8;
    assert_refused(annulus_context_set_allocator(f->context, &later.allocator), ARGUMENT, "allocator");
    later.allocator.size = sizeof later;
    later.unknown[0] = 1;
    assert_refused(annulus_context_set_allocator(f->context, &later.allocator), ARGUMENT, "allocator");
    assert_ok(annulus_context_set_allocator(f->context, NULL));
    assert_ok(forward_call.run(f));
}

static void hilbert_curves(void **state) {
    (void)state;
    int64_t positions[12];
    memset(positions, 0xA5, sizeof positions);
    const int64_t first = positions[0];
    assert_refused(annulus_hilbert_curve(NULL, 12, 4), ARGUMENT, "positions");
    assert_refused(annulus_hilbert_curve(positions, 0, 0), ARGUMENT, "length");
    assert_refused(annulus_hilbert_curve(positions, -12, 4), ARGUMENT, "length");
    assert_refused(annulus_hilbert_curve(positions, 12, -1), ARGUMENT, "width");
    assert_refused(annulus_hilbert_curve(positions, 12, 5), ARGUMENT, "width");
    assert_refused(annulus_hilbert_curve(positions, 12, 24), ARGUMENT, "width");
    assert_true(positions[0] == first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(null_handles),
        TEST(config_numbers),
        TEST(enumerations),
        TEST(presets),
        TEST(context_settings),
        TEST(engines_of_other_devices),
        TEST(context_without_config),
        TEST(config_does_not_fit),
        TEST(problem_fields),
        TEST(questions_of_cost),
        TEST(allocators),
        TEST(hilbert_curves),
    };
    return RUN_TESTS(tests);
}
