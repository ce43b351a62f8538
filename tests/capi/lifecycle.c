/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles from create to destroy, independence of copies, results of the small functions, and the values of presets.
 */
#include "fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void names_and_versions(void **state) {
    (void)state;
    char text[40];
    assert_int_equal(annulus_version(), ANNULUS_VERSION);
    snprintf(text, sizeof text, "%d.%d.%d", ANNULUS_VERSION_MAJOR, ANNULUS_VERSION_MINOR, ANNULUS_VERSION_PATCH);
    assert_string_equal(annulus_version_string(), text);
    assert_non_null(strstr(annulus_build_info(), text));
    assert_null(strchr(annulus_build_info(), '\n'));

    /* Statuses below 100 say that nothing was written. From 100 on, outputs may be partly written. */
    const char *const refusals[] = {"ok", "argument", "unsupported", "memory", "workspace", "declined", "unknown"};
    const char *const failures[] = {"device", "comm", "comm_library", "internal", "unknown"};
    for (int i = 0; i < 7; ++i)
        assert_string_equal(annulus_status_name((annulus_status)i), refusals[i]);
    for (int i = 0; i < 5; ++i)
        assert_string_equal(annulus_status_name((annulus_status)(100 + i)), failures[i]);
    assert_string_equal(annulus_status_name((annulus_status)99), "unknown");
    const char *const dtypes[] = {"unknown", "float64", "float32", "bfloat16", "float16", "unknown"};
    const int bits[] = {0, 64, 32, 16, 16, 0};
    for (int i = 0; i < 6; ++i) {
        assert_string_equal(annulus_dtype_name((annulus_dtype)i), dtypes[i]);
        assert_int_equal(annulus_dtype_bits((annulus_dtype)i), bits[i]);
    }
    assert_string_equal(annulus_engine_name(ANNULUS_ENGINE_AUTO), "auto");
    assert_string_equal(annulus_engine_name(ANNULUS_ENGINE_REFERENCE), "reference");
    assert_string_equal(annulus_engine_name(ANNULUS_ENGINE_CPU), "cpu");
    assert_string_equal(annulus_engine_name(ANNULUS_ENGINE_GEMM), "gemm");
    assert_string_equal(annulus_engine_name(ANNULUS_ENGINE_FUSED), "fused");
    assert_string_equal(annulus_engine_name(ANNULUS_ENGINE_MMA), "mma");
    assert_string_equal(annulus_engine_name((annulus_engine)(ANNULUS_ENGINE_MMA + 1)), "unknown");

    int32_t count = 0;
    assert_ok(annulus_device_count(ANNULUS_DEVICE_CPU, &count));
    assert_int_equal(count, 1);
}

static void destroying_null_is_legal(void **state) {
    (void)state;
    annulus_config_destroy(NULL);
    annulus_context_destroy(NULL);
}

static void branches_are_numbered(void **state) {
    (void)state;
    annulus_config *config = NULL;
    const annulus_branch branch = ANNULUS_BRANCH_INIT(4, 1);
    int32_t index = -1;
    assert_ok(annulus_config_create(&config));
    assert_branch_count(config, 0);
    for (int32_t i = 0; i < 20; ++i) {
        assert_ok(annulus_config_add_branch(config, &branch, i % 2 ? NULL : &index));
        assert_int_equal(index, i / 2 * 2);
        assert_branch_count(config, i + 1);
    }
    annulus_config_destroy(config);
}

/* Fails unless a config says `set`, or the default of a new config if that is 0. */
static void assert_settings(const annulus_config *config, int set) {
    annulus_padding_rule padding;
    annulus_key_rule keys;
    annulus_engine engine;
    annulus_exchange exchange;
    int causal = 77, allow = 77;
    int32_t first = 77, total = 77;
    double scale = 77;
    uint64_t bytes = 77;
    assert_ok(annulus_config_get_padding_rule(config, &padding));
    assert_ok(annulus_config_get_key_rule(config, &keys));
    assert_ok(annulus_config_get_head_shard(config, &first, &total));
    assert_ok(annulus_config_get_causal(config, &causal));
    assert_ok(annulus_config_get_scale(config, &scale));
    assert_ok(annulus_config_get_engine(config, &engine));
    assert_ok(annulus_config_get_allow_tf32(config, &allow));
    assert_ok(annulus_config_get_workspace_limit(config, &bytes));
    assert_ok(annulus_config_get_exchange(config, &exchange));
    assert_int_equal(padding, set ? ANNULUS_PADDING_ZERO_KEYS : ANNULUS_PADDING_EXACT);
    assert_int_equal(keys, set ? ANNULUS_KEY_ONCE : ANNULUS_KEY_EACH_BRANCH);
    assert_int_equal(first, set ? 3 : 0);
    assert_int_equal(total, set ? 9 : 0);
    assert_int_equal(causal, set);
    assert_true(set ? scale == -0.3 : scale != scale);
    assert_int_equal(engine, set ? ANNULUS_ENGINE_REFERENCE : ANNULUS_ENGINE_AUTO);
    assert_int_equal(allow, set);
    assert_true(bytes == (set ? UINT64_MAX : 0));
    assert_int_equal(exchange, set ? ANNULUS_EXCHANGE_GATHER : ANNULUS_EXCHANGE_AUTO);
}

/* A branch with zero in every field after w and r is LongNet's. A new config has zero as its padding and key rule. */
static void zero_is_the_default(void **state) {
    (void)state;
    annulus_config *config = NULL;
    annulus_branch zeros, found = ANNULUS_BRANCH_INIT(1, 1);
    const annulus_branch longnet = ANNULUS_BRANCH_INIT(24, 5);
    memset(&zeros, 0, sizeof zeros);
    zeros.size = sizeof zeros;
    zeros.segment_length = 24;
    zeros.dilation = 5;
    assert_memory_equal(&zeros, &longnet, offsetof(annulus_branch, order) + sizeof zeros.order);
    assert_ok(annulus_config_create(&config));
    assert_ok(annulus_config_add_branch(config, &zeros, NULL));
    assert_ok(annulus_config_get_branch(config, 0, &found));
    assert_int_equal(found.phase_rule, ANNULUS_PHASE_BLOCK);
    assert_int_equal(found.query_rule, ANNULUS_QUERY_DILATED);
    assert_int_equal(found.order, ANNULUS_ORDER_LINEAR);
    assert_int_equal(found.head_count, 0); /* all heads */
    assert_ok(annulus_config_set_padding_rule(config, (annulus_padding_rule)0));
    assert_ok(annulus_config_set_key_rule(config, (annulus_key_rule)0));
    assert_settings(config, 0);
    annulus_config_destroy(config);
}

static void settings_are_read_back(void **state) {
    fixture *f = *state;
    annulus_config *config = NULL, *copy = NULL;
    double scale = 0;
    assert_ok(annulus_config_create(&config));
    assert_settings(config, 0);
    add_branch(config, 4, 1);
    assert_ok(annulus_config_set_padding_rule(config, ANNULUS_PADDING_ZERO_KEYS));
    assert_ok(annulus_config_set_head_shard(config, 3, 9));
    assert_ok(annulus_config_set_causal(config, 1));
    assert_ok(annulus_config_set_key_rule(config, ANNULUS_KEY_ONCE));
    assert_ok(annulus_config_set_scale(config, -0.3));
    assert_ok(annulus_config_set_engine(config, ANNULUS_ENGINE_REFERENCE));
    assert_ok(annulus_config_set_allow_tf32(config, 1));
    assert_ok(annulus_config_set_workspace_limit(config, UINT64_MAX));
    assert_ok(annulus_config_set_exchange(config, ANNULUS_EXCHANGE_GATHER));
    assert_settings(config, 1);
    assert_ok(annulus_context_set_config(f->context, config));
    assert_ok(annulus_config_unset_scale(config));
    assert_ok(annulus_config_get_scale(config, &scale));
    assert_true(scale != scale);
    annulus_config_destroy(config);
    assert_ok(annulus_context_copy_config(&copy, f->context)); /* the config as it was at set_config() */
    assert_settings(copy, 1);
    assert_branch_count(copy, 1);
    annulus_config_destroy(copy);
}

static void branches_are_read_back(void **state) {
    (void)state;
    annulus_config *config = NULL;
    const int64_t lengths[] = {16, 32}, dilations[] = {1, 2};
    const annulus_branch wanted[] = {
        ANNULUS_BRANCH_INIT(24, 5),
        {sizeof(annulus_branch), 0, 7, 9, 0, 3, 2, ANNULUS_PHASE_FIXED, ANNULUS_QUERY_EVERY, ANNULUS_ORDER_LINEAR},
        {sizeof(annulus_branch), 60, 4, 0, 12, 5, 0, ANNULUS_PHASE_INTERLEAVE, ANNULUS_QUERY_RESIDUE,
         ANNULUS_ORDER_HILBERT},
        {sizeof(annulus_branch), 16, 1, 0, 0, 0, 2, ANNULUS_PHASE_FIXED, ANNULUS_QUERY_DILATED, ANNULUS_ORDER_LINEAR},
        {sizeof(annulus_branch), 32, 2, 1, 0, 2, 1, ANNULUS_PHASE_FIXED, ANNULUS_QUERY_DILATED, ANNULUS_ORDER_LINEAR},
    };
    assert_ok(annulus_config_create(&config));
    assert_ok(annulus_config_add_branch(config, &wanted[2], NULL));
    assert_ok(annulus_config_add_branch(config, &wanted[1], NULL));
    add_branch(config, 1, 1);
    assert_ok(annulus_config_set_branch(config, 2, &wanted[2]));
    assert_ok(annulus_config_set_branch(config, 0, &wanted[0]));
    assert_ok(annulus_config_add_head_groups(config, 3, 2, lengths, dilations));
    assert_branch_count(config, 5);
    for (int32_t i = 0; i < 5; ++i) {
        annulus_branch branch = ANNULUS_BRANCH_INIT(1, 1);
        assert_ok(annulus_config_get_branch(config, i, &branch));
        assert_memory_equal(&branch, &wanted[i], offsetof(annulus_branch, order) + sizeof branch.order);
    }
    annulus_config_destroy(config);
}

/* Returns the pairs of the fixture's problem under the context's config, a number that distinguishes configs. */
static double pairs(annulus_context *context) {
    const annulus_problem problem = fixture_problem();
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    assert_ok(annulus_estimate_problem(context, &problem, ANNULUS_PASS_FORWARD, ANNULUS_ALL_BRANCHES, &estimate));
    return estimate.pairs;
}

static void copies_are_independent(void **state) {
    fixture *f = *state;
    annulus_config *copy = NULL;
    const double before = pairs(f->context);
    assert_ok(annulus_config_copy(&copy, f->config));
    add_branch(copy, 0, 1);
    assert_ok(annulus_config_set_causal(copy, 1));
    assert_branch_count(f->config, 2);
    assert_branch_count(copy, 3);
    /* The context keeps its own copy, so a change or destruction of the config does not affect it. */
    assert_ok(annulus_config_set_causal(f->config, 1));
    assert_true(pairs(f->context) == before);
    annulus_config_destroy(f->config);
    f->config = copy;
    assert_true(pairs(f->context) == before);
    assert_ok(annulus_context_set_config(f->context, copy));
    assert_true(pairs(f->context) != before);
}

static void set_engine(fixture *f, annulus_engine engine) {
    assert_ok(annulus_config_set_engine(f->config, engine));
    assert_ok(annulus_context_set_config(f->context, f->config));
}

static void last_engine(void **state) {
    fixture *f = *state;
    const annulus_engine engines[] = {ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU, ANNULUS_ENGINE_AUTO};
    const annulus_engine served[] = {ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU, ANNULUS_ENGINE_CPU};
    annulus_context *context = NULL;
    annulus_engine engine = ANNULUS_ENGINE_CPU;
    assert_ok(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    assert_ok(annulus_context_last_engine(context, &engine));
    assert_int_equal(engine, ANNULUS_ENGINE_AUTO);
    annulus_context_destroy(context);
    for (int i = 0; i < 3; ++i) {
        set_engine(f, engines[i]);
        assert_ok(forward_call.run(f));
        assert_ok(annulus_context_last_engine(f->context, &engine));
        assert_int_equal(engine, served[i]);
    }
}

/* The selected engine is the one that computes. annulus_check_engine() refuses what a config with that engine would be
 * refused for. */
static void selected_engine(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    const annulus_engine on_cpu[] = {ANNULUS_ENGINE_AUTO, ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU};
    const annulus_engine on_gpu[] = {ANNULUS_ENGINE_GEMM, ANNULUS_ENGINE_FUSED, ANNULUS_ENGINE_MMA};
    for (int c = 0; c < CALLS; ++c)
        for (int i = 0; i < 3; ++i) {
            annulus_engine selected = ANNULUS_ENGINE_GEMM, served = ANNULUS_ENGINE_MMA;
            set_engine(f, on_cpu[i]);
            assert_ok(annulus_select_engine(f->context, &problem, all_calls[c]->pass, &selected));
            assert_ok(all_calls[c]->run(f));
            assert_ok(annulus_context_last_engine(f->context, &served));
            assert_int_equal(selected, served);
            /* The config's own engine does not matter. */
            for (int j = 0; j < 3; ++j) {
                assert_ok(annulus_check_engine(f->context, &problem, all_calls[c]->pass, on_cpu[j]));
                assert_refused(annulus_check_engine(f->context, &problem, all_calls[c]->pass, on_gpu[j]),
                               ANNULUS_ERROR_UNSUPPORTED, annulus_engine_name(on_gpu[j]));
            }
        }
}

static void selected_engine_of_a_rank(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    annulus_engine engine = ANNULUS_ENGINE_AUTO;
    annulus_comm *comm = NULL;
    assert_ok(annulus_comm_create_local(&comm, 1, NULL));
    assert_ok(annulus_context_set_comm(f->context, comm));
    assert_ok(annulus_select_engine(f->context, &problem, ANNULUS_PASS_FORWARD, &engine));
    assert_int_equal(engine, ANNULUS_ENGINE_CPU);
    assert_ok(annulus_check_engine(f->context, &problem, ANNULUS_PASS_FORWARD, ANNULUS_ENGINE_CPU));
    assert_refused(annulus_check_engine(f->context, &problem, ANNULUS_PASS_FORWARD, ANNULUS_ENGINE_REFERENCE),
                   ANNULUS_ERROR_UNSUPPORTED, "reference");
    annulus_comm_destroy(comm);
}

/* Returns a pass's estimate of one branch or of all, for a problem with Prov-GigaPath's heads. */
static annulus_estimate estimate_of(const annulus_config *config, int64_t length, annulus_pass pass, int32_t branch) {
    annulus_context *context = NULL;
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    problem.dtype = ANNULUS_FLOAT32;
    problem.heads = problem.kv_heads = 16;
    problem.head_dim = 48;
    problem.batch = 1;
    problem.sequence_length = length;
    assert_ok(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    assert_ok(annulus_context_set_config(context, config));
    assert_ok(annulus_estimate_problem(context, &problem, pass, branch, &estimate));
    annulus_context_destroy(context);
    return estimate;
}

static void assert_same_branches(const annulus_config *a, const annulus_config *b, int32_t count) {
    assert_branch_count(a, count);
    for (int32_t branch = 0; branch < count; ++branch)
        assert_true(estimate_of(a, 2000003, ANNULUS_PASS_FORWARD, branch).pairs ==
                    estimate_of(b, 2000003, ANNULUS_PASS_FORWARD, branch).pairs);
}

static void presets_are_their_branches(void **state) {
    (void)state;
    annulus_config *preset = NULL, *branches = NULL;
    assert_ok(annulus_config_create(&preset));
    assert_ok(annulus_config_create(&branches));
    annulus_padding_rule padding = ANNULUS_PADDING_EXACT;
    annulus_key_rule keys = ANNULUS_KEY_ONCE;
    annulus_engine engine = ANNULUS_ENGINE_AUTO;
    int causal = 77;
    /* The preset's rules replace the earlier ones; all other values stay. */
    assert_ok(annulus_config_set_causal(preset, 1));
    assert_ok(annulus_config_set_key_rule(preset, ANNULUS_KEY_ONCE));
    assert_ok(annulus_config_set_engine(preset, ANNULUS_ENGINE_CPU));
    assert_ok(annulus_config_add_preset(preset, "gigapath"));
    assert_ok(annulus_config_get_padding_rule(preset, &padding));
    assert_ok(annulus_config_get_key_rule(preset, &keys));
    assert_ok(annulus_config_get_causal(preset, &causal));
    assert_ok(annulus_config_get_engine(preset, &engine));
    assert_int_equal(padding, ANNULUS_PADDING_ZERO_KEYS);
    assert_int_equal(keys, ANNULUS_KEY_EACH_BRANCH);
    assert_int_equal(causal, 0);
    assert_int_equal(engine, ANNULUS_ENGINE_CPU);
    const int64_t segments[] = {1024, 5792, 32768, 185363, 1048576};
    for (int i = 0; i < 5; ++i)
        add_branch(branches, segments[i], (int64_t)1 << i);
    assert_ok(annulus_config_set_padding_rule(branches, ANNULUS_PADDING_ZERO_KEYS));
    assert_same_branches(preset, branches, 5);
    annulus_config_destroy(preset);
    annulus_config_destroy(branches);

    assert_ok(annulus_config_create(&preset));
    assert_ok(annulus_config_create(&branches));
    assert_ok(annulus_config_add_longnet(preset, 2048, 4, 3, 4));
    for (int64_t i = 0, w = 2048, r = 1; i < 4; ++i, w *= 4, r *= 3)
        add_branch(branches, w, r);
    assert_same_branches(preset, branches, 4);
    annulus_config_destroy(preset);
    annulus_config_destroy(branches);
}

static void presets_have_names(void **state) {
    (void)state;
    annulus_config *config = NULL;
    int32_t count = 0;
    assert_string_equal(annulus_preset_name(0), "gigapath");
    for (; annulus_preset_name(count); ++count) {
        assert_ok(annulus_config_create(&config));
        assert_ok(annulus_config_add_preset(config, annulus_preset_name(count)));
        annulus_config_destroy(config);
    }
    const int32_t none[] = {-1, count, count + 1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; ++i)
        assert_null(annulus_preset_name(none[i]));
}

/* Dense attention of N positions: N * N pairs a head; if causal, half of them and the diagonal. */
static void estimates_add_up(void **state) {
    (void)state;
    annulus_config *config = NULL;
    assert_ok(annulus_config_create(&config));
    add_branch(config, 0, 1);
    add_branch(config, 100, 1);
    const struct {
        annulus_pass pass;
        double flops;            /* for each pair and element */
        uint64_t elements, rows; /* of all tensors for each position and head: rows of D elements, and statistics */
    } passes[] = {{ANNULUS_PASS_FORWARD, 4, 4, 1}, {ANNULUS_PASS_BACKWARD, 10, 8, 1}, {ANNULUS_PASS_MASS, 4, 2, 2}};
    for (int i = 0; i < 3; ++i) {
        const annulus_estimate dense = estimate_of(config, 1000, passes[i].pass, 0);
        assert_true(dense.pairs == 16.0 * 1000 * 1000);
        assert_true(dense.flops == passes[i].flops * dense.pairs * 48);
        assert_true(estimate_of(config, 1000, passes[i].pass, 1).pairs == 16.0 * 1000 * 100);
        const annulus_estimate all = estimate_of(config, 1000, passes[i].pass, ANNULUS_ALL_BRANCHES);
        assert_true(all.pairs == 16.0 * 1000 * 1100);
        assert_true(all.tensor_bytes == (passes[i].elements * 48 + passes[i].rows) * 1000 * 16 * 4);
        assert_true(all.sent_bytes == 0 && all.received_bytes == 0 && all.exchange == ANNULUS_EXCHANGE_AUTO);
        assert_true(all.plan_bytes > 0 && all.plan_bytes < 1 << 20);
        assert_true(dense.tensor_bytes == all.tensor_bytes && dense.workspace_bytes == all.workspace_bytes);
    }
    assert_ok(annulus_config_set_causal(config, 1));
    assert_true(estimate_of(config, 1000, ANNULUS_PASS_FORWARD, 0).pairs == 16.0 * 1000 * 1001 / 2);
    annulus_config_destroy(config);
}

static int32_t threads_of(annulus_context *context) {
    int32_t threads = 0;
    assert_ok(annulus_context_get_threads(context, &threads));
    return threads;
}

/* Returns a number that shows the number of threads, for a problem with work for many threads. */
static uint64_t workspace_of(annulus_context *context) {
    annulus_problem problem = fixture_problem();
    uint64_t bytes = 0;
    problem.heads = problem.kv_heads = 16;
    problem.sequence_length = 1 << 16;
    assert_ok(annulus_workspace_size(context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    return bytes;
}

static uint64_t workspace_of_threads(annulus_context *context, int32_t threads) {
    assert_ok(annulus_context_set_threads(context, threads));
    return workspace_of(context);
}

static annulus_context *context_with(const annulus_config *config) {
    annulus_context *context = NULL;
    assert_ok(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    assert_ok(annulus_context_set_config(context, config));
    return context;
}

static void threads_of_the_environment(void **state) {
    fixture *f = *state;
    const char *const numbers[] = {"1", "3", "64", "1024"};
    const int32_t threads[] = {1, 3, 64, 1024};
    assert_true(workspace_of_threads(f->context, 1) < workspace_of_threads(f->context, 2));
    assert_true(workspace_of_threads(f->context, 3) < workspace_of_threads(f->context, 64));
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(setenv("ANNULUS_NUM_THREADS", numbers[i], 1), 0);
        annulus_context *const context = context_with(f->config);
        assert_int_equal(setenv("ANNULUS_NUM_THREADS", "2", 1), 0); /* too late: the context has read it */
        assert_int_equal(threads_of(context), threads[i]);
        assert_true(workspace_of(context) == workspace_of_threads(f->context, threads[i]));
        assert_int_equal(threads_of(f->context), threads[i]);
        assert_true(workspace_of_threads(context, 5) == workspace_of_threads(f->context, 5));
        assert_true(workspace_of_threads(context, 0) == workspace_of_threads(f->context, threads[i]));
        annulus_context_destroy(context);
    }
    const char *const wrong[] = {"", "0", "-1", "1025", "99999999999999999999", "1.5", "2x", " 2", "two", "2\n"};
    for (int i = 0; i < 10; ++i) {
        annulus_context *context = NULL;
        assert_int_equal(setenv("ANNULUS_NUM_THREADS", wrong[i], 1), 0);
        assert_refused(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0), ANNULUS_ERROR_ARGUMENT,
                       "ANNULUS_NUM_THREADS");
        if (i < 9)
            assert_non_null(strstr(annulus_last_error(), wrong[i]));
        assert_null(context);
    }
    assert_int_equal(unsetenv("ANNULUS_NUM_THREADS"), 0);
    int32_t count = 77;
    assert_refused(annulus_context_get_threads(NULL, &count), ANNULUS_ERROR_ARGUMENT, "context");
    assert_refused(annulus_context_get_threads(f->context, NULL), ANNULUS_ERROR_ARGUMENT, "threads");
    assert_int_equal(count, 77);
}

static void threads_of_the_affinity(void **state) {
    fixture *f = *state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before))
        ++cpu;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    annulus_context *const context = context_with(f->config);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const uint64_t bytes = workspace_of(context);
    assert_int_equal(threads_of(context), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_true(bytes == workspace_of_threads(f->context, 1));
    annulus_context_destroy(context);
}

static void *fail_once(void *unused) {
    (void)unused;
    const int silent_before = annulus_last_error()[0] == '\0';
    const int fails = annulus_config_create(NULL) != ANNULUS_OK;
    return (void *)(intptr_t)(silent_before && fails && annulus_last_error()[0] != '\0');
}

static void messages_belong_to_their_thread(void **state) {
    (void)state;
    char message[512];
    pthread_t thread;
    void *result = NULL;
    assert_refused(annulus_hilbert_curve(4, 2, NULL), ANNULUS_ERROR_ARGUMENT, "positions");
    strcpy(message, annulus_last_error());
    assert_int_equal(pthread_create(&thread, NULL, fail_once, NULL), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_true(result != NULL);
    assert_string_equal(annulus_last_error(), message);
    int32_t count = 0;
    assert_ok(annulus_device_count(ANNULUS_DEVICE_CPU, &count)); /* success does not change the message */
    assert_string_equal(annulus_last_error(), message);
}

static void hilbert_curve_of_a_square(void **state) {
    (void)state;
    int64_t positions[16];
    int seen[16] = {0};
    assert_ok(annulus_hilbert_curve(16, 0, positions));
    for (int p = 0; p < 16; ++p) {
        assert_in_range(positions[p], 0, 15);
        ++seen[positions[p]];
        if (p > 0)
            assert_int_equal(
                llabs(positions[p] / 4 - positions[p - 1] / 4) + llabs(positions[p] % 4 - positions[p - 1] % 4), 1);
    }
    for (int i = 0; i < 16; ++i)
        assert_int_equal(seen[i], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(names_and_versions),
        TEST(destroying_null_is_legal),
        TEST(branches_are_numbered),
        TEST(zero_is_the_default),
        TEST(settings_are_read_back),
        TEST(branches_are_read_back),
        TEST(copies_are_independent),
        TEST(last_engine),
        TEST(selected_engine),
        TEST(selected_engine_of_a_rank),
        TEST(presets_are_their_branches),
        TEST(presets_have_names),
        TEST(estimates_add_up),
        TEST(threads_of_the_environment),
        TEST(threads_of_the_affinity),
        TEST(messages_belong_to_their_thread),
        TEST(hilbert_curve_of_a_square),
    };
    return RUN_TESTS(tests);
}
