/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes every other argument of every function wrong, one at a time: handles, enumerations, numbers, sized structs, and
 * configs that do not fit the problem.
 */
#include "fixture.h"

#include <math.h>
#include <string.h>

#define ARGUMENT ANNULUS_ERROR_ARGUMENT

static void assert_calls_refused(fixture *f, annulus_status wanted, const char *name, const char *what) {
    for (int c = 0; c < CALLS; ++c)
        assert_call_refused(f, all_calls[c], wanted, name, what);
}

static void null_handles(void **state) {
    fixture *f = *state;
    annulus_config *config = NULL;
    annulus_engine engine;
    int32_t count = 77;
    const int64_t lengths[] = {4};
    annulus_context *const context = f->context;
    f->context = NULL;
    assert_calls_refused(f, ARGUMENT, "context", "no context");
    f->context = context;

    assert_refused(annulus_config_create(NULL), ARGUMENT, "config");
    assert_refused(annulus_config_copy(NULL, f->config), ARGUMENT, "copy");
    assert_refused(annulus_config_copy(&config, NULL), ARGUMENT, "config");
    assert_null(config);
    annulus_branch branch = ANNULUS_BRANCH_INIT(4, 1);
    assert_refused(annulus_config_add_branch(NULL, &branch, NULL), ARGUMENT, "config");
    assert_refused(annulus_config_add_branch(f->config, NULL, NULL), ARGUMENT, "branch");
    assert_refused(annulus_config_set_branch(NULL, 0, &branch), ARGUMENT, "config");
    assert_refused(annulus_config_set_branch(f->config, 0, NULL), ARGUMENT, "branch");
    assert_refused(annulus_config_get_branch(NULL, 0, &branch), ARGUMENT, "config");
    assert_refused(annulus_config_get_branch(f->config, 0, NULL), ARGUMENT, "branch");
    assert_refused(annulus_config_branch_count(NULL, &count), ARGUMENT, "config");
    assert_int_equal(count, 77);
    assert_refused(annulus_config_branch_count(f->config, NULL), ARGUMENT, "count");
    assert_refused(annulus_config_set_padding_rule(NULL, ANNULUS_PADDING_EXACT), ARGUMENT, "config");
    assert_refused(annulus_config_set_key_rule(NULL, ANNULUS_KEY_ONCE), ARGUMENT, "config");
    assert_refused(annulus_config_set_head_shard(NULL, 0, 4), ARGUMENT, "config");
    assert_refused(annulus_config_set_causal(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_set_scale(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_unset_scale(NULL), ARGUMENT, "config");
    assert_refused(annulus_config_set_engine(NULL, ANNULUS_ENGINE_AUTO), ARGUMENT, "config");
    assert_refused(annulus_config_set_allow_tf32(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_set_workspace_limit(NULL, 1), ARGUMENT, "config");
    assert_refused(annulus_config_add_longnet(NULL, 4, 2, 2, 1), ARGUMENT, "config");
    assert_refused(annulus_config_add_preset(NULL, "gigapath"), ARGUMENT, "config");
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

/* Adds the branch, or replaces branch 0 by it. If that is refused, checks that nothing changed. */
static annulus_status change_branch(annulus_config *config, const annulus_branch *branch, int adds) {
    annulus_branch before = ANNULUS_BRANCH_INIT(0, 1), after = ANNULUS_BRANCH_INIT(0, 1);
    int32_t index = 77, count = 0;
    assert_ok(annulus_config_get_branch(config, 0, &before));
    assert_ok(annulus_config_branch_count(config, &count));
    const annulus_status status =
        adds ? annulus_config_add_branch(config, branch, &index) : annulus_config_set_branch(config, 0, branch);
    if (status == ANNULUS_OK)
        return status;
    assert_int_equal(index, 77);
    assert_branch_count(config, count);
    assert_ok(annulus_config_get_branch(config, 0, &after));
    assert_memory_equal(&before, &after, FIRST_BYTES(annulus_branch, order));
    return status;
}

static void assert_branch_refused(annulus_config *config, const annulus_branch *branch, const char *name) {
    for (int adds = 0; adds < 2; ++adds)
        assert_refused(change_branch(config, branch, adds), ARGUMENT, name);
}

static void assert_fields_refused(annulus_config *config, const annulus_branch *legal, const bad_field *wrong,
                                  size_t count) {
    for (size_t i = 0; i < count; ++i) {
        annulus_branch branch = *legal;
        set_field(&branch, &wrong[i]);
        assert_branch_refused(config, &branch, wrong[i].name);
    }
}

static void assert_branch_runs(const fixture *f, const annulus_branch *branch) {
    assert_ok(annulus_config_add_branch(f->config, branch, NULL));
    assert_ok(annulus_context_set_config(f->context, f->config));
    assert_ok(forward_call.run(f));
}

static void branches(void **state) {
    fixture *f = *state;
    const annulus_branch legal = ANNULUS_BRANCH_INIT(6, 2);
    static const bad_field wrong[] = {
        {"segment_length", FIELD(annulus_branch, segment_length), -1},
        {"segment_length", FIELD(annulus_branch, segment_length), INT64_MIN},
        {"dilation", FIELD(annulus_branch, dilation), 0},
        {"dilation", FIELD(annulus_branch, dilation), -3},
        {"residue", FIELD(annulus_branch, residue), -1},
        {"residue", FIELD(annulus_branch, residue), 1}, /* the phase rule is not fixed */
        {"grid_width", FIELD(annulus_branch, grid_width), -1},
        {"grid_width", FIELD(annulus_branch, grid_width), 3}, /* the order is linear */
        {"first_head", FIELD(annulus_branch, first_head), -1},
        {"first_head", FIELD(annulus_branch, first_head), INT32_MAX},
        {"head_count", FIELD(annulus_branch, head_count), -1},
        {"phase_rule", FIELD(annulus_branch, phase_rule), INT32_MIN}, /* known_values() has smaller numbers */
        {"query_rule", FIELD(annulus_branch, query_rule), INT32_MIN},
        {"order", FIELD(annulus_branch, order), INT32_MAX},
        {"left", FIELD(annulus_branch, left), 1}, /* the branch is no window */
        {"right", FIELD(annulus_branch, right), -1},
        {"first_global", FIELD(annulus_branch, first_global), 1}, /* the branch is not global */
        {"global_count", FIELD(annulus_branch, global_count), 1},
        {"global_queries", FIELD(annulus_branch, global_queries), 1},
        {"kind", FIELD(annulus_branch, kind), INT32_MAX},
    };
    assert_fields_refused(f->config, &legal, wrong, sizeof wrong / sizeof *wrong);
    annulus_branch branch = legal;
    branch.order = ANNULUS_ORDER_HILBERT;
    branch.grid_width = 4; /* of 6 */
    assert_branch_refused(f->config, &branch, "grid_width");
    branch = legal;
    branch.phase_rule = ANNULUS_PHASE_FIXED;
    branch.residue = -1;
    assert_branch_refused(f->config, &branch, "residue");
    branch = legal;
    branch.first_head = 2;
    branch.head_count = INT32_MAX - 1;
    assert_branch_refused(f->config, &branch, "head_count");

    const int32_t no_branches[] = {-1, 2, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i) {
        branch = legal;
        assert_refused(annulus_config_set_branch(f->config, no_branches[i], &branch), ARGUMENT, "index");
        assert_refused(annulus_config_get_branch(f->config, no_branches[i], &branch), ARGUMENT, "index");
        assert_memory_equal(&branch, &legal, sizeof legal);
    }
}

static void windows(void **state) {
    fixture *f = *state;
    const annulus_branch legal = ANNULUS_BRANCH_WINDOW_INIT(3, -1, 2);
    const bad_field wrong[] = {
        {"left", FIELD(annulus_branch, left), -2},
        {"left", FIELD(annulus_branch, left), INT64_MIN},
        {"right", FIELD(annulus_branch, right), -2},
        {"dilation", FIELD(annulus_branch, dilation), 0},
        {"segment_length", FIELD(annulus_branch, segment_length), 1},
        {"order", FIELD(annulus_branch, order), ANNULUS_ORDER_HILBERT},
        {"query_rule", FIELD(annulus_branch, query_rule), ANNULUS_QUERY_EVERY},
        {"residue", FIELD(annulus_branch, residue), 1},
        {"grid_width", FIELD(annulus_branch, grid_width), 1},
        {"first_global", FIELD(annulus_branch, first_global), 1},
        {"global_count", FIELD(annulus_branch, global_count), 1},
        {"global_queries", FIELD(annulus_branch, global_queries), 1},
    };
    assert_fields_refused(f->config, &legal, wrong, sizeof wrong / sizeof *wrong);
    annulus_branch longest = ANNULUS_BRANCH_WINDOW_INIT(INT64_MAX, INT64_MAX, INT64_MAX);
    longest.query_rule = ANNULUS_QUERY_DILATED;
    assert_branch_runs(f, &longest);
}

static void global_positions(void **state) {
    fixture *f = *state;
    const annulus_branch legal = ANNULUS_BRANCH_GLOBAL_INIT(2, 3);
    const bad_field wrong[] = {
        {"first_global", FIELD(annulus_branch, first_global), -1},
        {"global_count", FIELD(annulus_branch, global_count), 0},
        {"global_count", FIELD(annulus_branch, global_count), -1},
        {"global_count", FIELD(annulus_branch, global_count), INT64_MAX - 1},
        {"global_queries", FIELD(annulus_branch, global_queries), 2},
        {"global_queries", FIELD(annulus_branch, global_queries), -1},
        {"dilation", FIELD(annulus_branch, dilation), 2},
        {"segment_length", FIELD(annulus_branch, segment_length), 1},
        {"order", FIELD(annulus_branch, order), ANNULUS_ORDER_HILBERT},
        {"left", FIELD(annulus_branch, left), 1},
        {"right", FIELD(annulus_branch, right), -1},
    };
    assert_fields_refused(f->config, &legal, wrong, sizeof wrong / sizeof *wrong);
    annulus_branch last = ANNULUS_BRANCH_GLOBAL_INIT(INT64_MAX - 1, 1); /* beyond every sequence */
    last.global_queries = 1;
    assert_branch_runs(f, &last);
}

/* A caller whose struct ends behind `order` has segments, whatever its padding holds, and reads no other branches. */
static void branches_of_the_first_version(void **state) {
    fixture *f = *state;
    annulus_branch old = ANNULUS_BRANCH_INIT(6, 2), found = ANNULUS_BRANCH_INIT(0, 1);
    const annulus_branch window = ANNULUS_BRANCH_WINDOW_INIT(3, 1, 2);
    int32_t index;
    old.size = offsetof(annulus_branch, left);
    memset((char *)&old + FIRST_BYTES(annulus_branch, order), 0xEE, sizeof old - FIRST_BYTES(annulus_branch, order));
    assert_ok(annulus_config_add_branch(f->config, &old, &index));
    assert_ok(annulus_config_get_branch(f->config, index, &found));
    assert_int_equal(found.kind, ANNULUS_BRANCH_SEGMENTS);
    assert_int_equal(found.left, 0);

    assert_ok(annulus_config_set_branch(f->config, index, &window));
    assert_refused(annulus_config_get_branch(f->config, index, &old), ANNULUS_ERROR_UNSUPPORTED, "kind window");
    assert_int_equal(old.segment_length, 6);
}

static annulus_status add_sized_branch(void *f, void *branch) {
    return change_branch(((fixture *)f)->config, branch, 1);
}
static annulus_status set_sized_branch(void *f, void *branch) {
    return change_branch(((fixture *)f)->config, branch, 0);
}
static annulus_status get_sized_branch(void *f, void *branch) {
    return annulus_config_get_branch(((fixture *)f)->config, 0, branch);
}
static annulus_status set_sized_allocator(void *f, void *allocator) {
    return annulus_context_set_allocator(((fixture *)f)->context, allocator);
}
static annulus_status size_sized_problem(void *f, void *problem) {
    uint64_t bytes;
    return annulus_workspace_size(((fixture *)f)->context, problem, ANNULUS_PASS_BACKWARD, &bytes);
}
static annulus_status fill_sized_estimate(void *f, void *estimate) {
    const annulus_problem problem = fixture_problem();
    return annulus_estimate_problem(((fixture *)f)->context, &problem, ANNULUS_PASS_FORWARD, -1, estimate);
}
static annulus_status fill_sized_traffic(void *f, void *traffic) {
    return annulus_context_last_traffic(((fixture *)f)->context, traffic);
}

/* A caller compiled with a later version has more fields, which it may use or not. */
static void sized_structs(void **state) {
    fixture *f = *state;
    annulus_branch set = ANNULUS_BRANCH_INIT(24, 5), got = ANNULUS_BRANCH_INIT(1, 1);
    annulus_allocator allocator = ANNULUS_ALLOCATOR_INIT;
    annulus_problem problem = fixture_problem();
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    traffic.sent_bytes = traffic.received_bytes = 77;
    const struct {
        sized_function function;
        void *given;
        size_t bytes, first_bytes;
        const char *name;
    } structs[] = {
        {add_sized_branch, &set, sizeof set, FIRST_BYTES(annulus_branch, order), "branch"},
        {set_sized_branch, &set, sizeof set, FIRST_BYTES(annulus_branch, order), "branch"},
        {get_sized_branch, &got, sizeof got, FIRST_BYTES(annulus_branch, order), "branch"},
        {size_sized_problem, &problem, sizeof problem, FIRST_BYTES(annulus_problem, options), "problem"},
        {fill_sized_estimate, &estimate, sizeof estimate, FIRST_BYTES(annulus_estimate, exchange), "estimate"},
        {fill_sized_traffic, &traffic, sizeof traffic, FIRST_BYTES(annulus_traffic, received_bytes), "traffic"},
    };
    for (size_t i = 0; i < sizeof structs / sizeof *structs; ++i)
        assert_ok(assert_sized(structs[i].function, f, structs[i].given, structs[i].bytes, structs[i].first_bytes,
                               structs[i].name));
    assert_branch_count(f->config, 3);
    assert_int_equal(got.segment_length, 24);
    assert_int_equal(got.dilation, 5);
    assert_true(traffic.sent_bytes == 0 && traffic.received_bytes == 0);

    assert_refused(assert_sized(set_sized_allocator, f, &allocator, sizeof allocator,
                                FIRST_BYTES(annulus_allocator, user), "allocator"),
                   ARGUMENT, "allocate");
    assert_ok(annulus_context_set_allocator(f->context, NULL));
    assert_ok(forward_call.run(f));
}

/* Calls a getter without a config, and without room for its result. */
#define REFUSES_NULL(get, config, result, name)                                                                        \
    do {                                                                                                               \
        assert_refused(get(NULL, &(result)), ARGUMENT, "config");                                                      \
        assert_refused(get(config, NULL), ARGUMENT, name);                                                             \
    } while (0)

static void getters(void **state) {
    fixture *f = *state;
    annulus_config *c = f->config, *copy = NULL;
    annulus_padding_rule padding;
    annulus_key_rule keys;
    annulus_engine engine;
    annulus_exchange exchange;
    int flag;
    int32_t first = 77, total = 77;
    double scale;
    uint64_t bytes;
    assert_refused(annulus_config_get_head_shard(NULL, &first, &total), ARGUMENT, "config");
    assert_refused(annulus_config_get_head_shard(c, NULL, &total), ARGUMENT, "first");
    assert_refused(annulus_config_get_head_shard(c, &first, NULL), ARGUMENT, "total");
    assert_true(first == 77 && total == 77);
    REFUSES_NULL(annulus_config_get_padding_rule, c, padding, "rule");
    REFUSES_NULL(annulus_config_get_key_rule, c, keys, "rule");
    REFUSES_NULL(annulus_config_get_causal, c, flag, "causal");
    REFUSES_NULL(annulus_config_get_scale, c, scale, "scale");
    REFUSES_NULL(annulus_config_get_engine, c, engine, "engine");
    REFUSES_NULL(annulus_config_get_allow_tf32, c, flag, "allow");
    REFUSES_NULL(annulus_config_get_workspace_limit, c, bytes, "bytes");
    REFUSES_NULL(annulus_config_get_exchange, c, exchange, "exchange");
    assert_refused(annulus_context_copy_config(&copy, NULL), ARGUMENT, "context");
    assert_refused(annulus_context_copy_config(NULL, f->context), ARGUMENT, "config");
    assert_null(copy);
}

static void config_numbers(void **state) {
    fixture *f = *state;
    annulus_config *c = f->config;
    assert_refused(annulus_config_set_causal(c, 2), ARGUMENT, "causal");
    assert_refused(annulus_config_set_causal(c, -1), ARGUMENT, "causal");
    assert_refused(annulus_config_set_head_shard(c, 0, -1), ARGUMENT, "total");
    assert_refused(annulus_config_set_head_shard(c, -1, 8), ARGUMENT, "first");
    assert_refused(annulus_config_set_head_shard(c, 8, 8), ARGUMENT, "first");
    assert_refused(annulus_config_set_head_shard(c, 1, 0), ARGUMENT, "first");
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
    const int unknown[] = {-1, 99, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i) {
        const int n = unknown[i];
        assert_refused(annulus_config_set_padding_rule(c, (annulus_padding_rule)n), ARGUMENT, "rule");
        assert_refused(annulus_config_set_key_rule(c, (annulus_key_rule)n), ARGUMENT, "rule");
        assert_refused(annulus_config_set_engine(c, (annulus_engine)n), ARGUMENT, "engine");
        assert_refused(annulus_context_create(&context, (annulus_device)n, 0), ARGUMENT, "device");
        assert_refused(annulus_device_count((annulus_device)n, &count), ARGUMENT, "device");
        assert_string_equal(annulus_engine_name((annulus_engine)n), "unknown");
        assert_string_equal(annulus_status_name((annulus_status)n), "unknown");
        assert_string_equal(annulus_dtype_name((annulus_dtype)n), "unknown");
        assert_int_equal(annulus_dtype_bits((annulus_dtype)n), 0);
    }
    assert_refused(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 1), ARGUMENT, "index");
    assert_refused(annulus_context_create(&context, ANNULUS_DEVICE_CPU, -1), ARGUMENT, "index");
    assert_null(context);
    assert_int_equal(count, 77);
}

static annulus_status add_branch_with(annulus_config *config, annulus_phase_rule phase, annulus_query_rule query,
                                      annulus_order order) {
    annulus_branch branch = ANNULUS_BRANCH_INIT(4, 1);
    branch.phase_rule = phase;
    branch.query_rule = query;
    branch.order = order;
    return annulus_config_add_branch(config, &branch, NULL);
}

static annulus_status size_with(const fixture *f, annulus_pass pass, annulus_dtype dtype, uint64_t flag) {
    annulus_problem problem = fixture_problem();
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    uint64_t bytes = 0;
    options.flags = flag;
    problem.options = &options;
    problem.query_length = flag == ANNULUS_CALL_QUERY_WINDOW;
    problem.dtype = dtype;
    return annulus_workspace_size(f->context, &problem, pass, &bytes);
}

static annulus_status add_branch_of_kind(annulus_config *config, annulus_branch_kind kind) {
    annulus_branch branch = ANNULUS_BRANCH_INIT(0, 1);
    branch.kind = kind;
    branch.global_count = kind == ANNULUS_BRANCH_GLOBAL;
    return annulus_config_add_branch(config, &branch, NULL);
}

/* Returns whether an argument of an enumeration is refused for its value. */
static int is_refused(const fixture *f, annulus_feature feature, int64_t value) {
    const annulus_branch branch = ANNULUS_BRANCH_INIT(4, 1);
    const int32_t n = (int32_t)value;
    annulus_config *const c = f->config;
    int32_t count = 0;
    switch (feature) {
    case ANNULUS_FEATURE_DTYPE:
        return size_with(f, ANNULUS_PASS_FORWARD, (annulus_dtype)n, 0) == ARGUMENT;
    case ANNULUS_FEATURE_DEVICE:
        return annulus_device_count((annulus_device)n, &count) == ARGUMENT;
    case ANNULUS_FEATURE_ENGINE:
        return annulus_config_set_engine(c, (annulus_engine)n) == ARGUMENT;
    case ANNULUS_FEATURE_PASS:
        return size_with(f, (annulus_pass)n, ANNULUS_FLOAT32, 0) == ARGUMENT;
    case ANNULUS_FEATURE_PHASE_RULE:
        return add_branch_with(c, (annulus_phase_rule)n, branch.query_rule, branch.order) == ARGUMENT;
    case ANNULUS_FEATURE_QUERY_RULE:
        return add_branch_with(c, branch.phase_rule, (annulus_query_rule)n, branch.order) == ARGUMENT;
    case ANNULUS_FEATURE_ORDER:
        return add_branch_with(c, branch.phase_rule, branch.query_rule, (annulus_order)n) == ARGUMENT;
    case ANNULUS_FEATURE_BRANCH_KIND:
        return add_branch_of_kind(c, (annulus_branch_kind)n) == ARGUMENT;
    case ANNULUS_FEATURE_PADDING_RULE:
        return annulus_config_set_padding_rule(c, (annulus_padding_rule)n) == ARGUMENT;
    case ANNULUS_FEATURE_KEY_RULE:
        return annulus_config_set_key_rule(c, (annulus_key_rule)n) == ARGUMENT;
    case ANNULUS_FEATURE_EXCHANGE:
        return annulus_config_set_exchange(c, (annulus_exchange)n) == ARGUMENT;
    case ANNULUS_FEATURE_CALL_FLAG:
        return size_with(f, ANNULUS_PASS_BACKWARD, ANNULUS_FLOAT32, (uint64_t)value) == ARGUMENT &&
               strstr(annulus_last_error(), "flags of options");
    default: /* values that are only results */
        return 0;
    }
}

/* annulus_knows() must agree with the checks of arguments. */
static void known_values(void **state) {
    fixture *f = *state;
    for (int feature = ANNULUS_FEATURE_DTYPE; feature <= ANNULUS_FEATURE_EXCHANGE; ++feature)
        for (int64_t value = -3; value < 300; ++value)
            assert_int_equal(annulus_knows((annulus_feature)feature, value),
                             !is_refused(f, (annulus_feature)feature, value));
    for (int bit = 0; bit < 64; ++bit) {
        const uint64_t flag = UINT64_C(1) << bit;
        assert_int_equal(annulus_knows(ANNULUS_FEATURE_CALL_FLAG, (int64_t)flag),
                         !is_refused(f, ANNULUS_FEATURE_CALL_FLAG, (int64_t)flag));
        if (annulus_knows(ANNULUS_FEATURE_COMM_FLAG, (int64_t)flag))
            continue; /* needs a real ncclComm_t */
        annulus_comm *comm = NULL;
        annulus_comm_options options = ANNULUS_COMM_OPTIONS_INIT;
        options.flags = flag;
        assert_refused(annulus_comm_create_from_nccl(&comm, f, &options), ARGUMENT, "flags");
    }
    assert_int_equal(annulus_knows(ANNULUS_FEATURE_CALL_FLAG, 0), 0); /* no bit */
    assert_int_equal(annulus_knows(ANNULUS_FEATURE_COMM_FLAG, 0), 0);
    assert_int_equal(annulus_knows(ANNULUS_FEATURE_CALL_FLAG, ANNULUS_CALL_ADD_D_Q | ANNULUS_CALL_ADD_D_K), 0);
    for (int64_t status = -3; status < 300; ++status)
        assert_int_equal(annulus_knows(ANNULUS_FEATURE_STATUS, status),
                         strcmp(annulus_status_name((annulus_status)status), "unknown") != 0);
    /* Numbers that a narrower type would change into valid ones, and enumerations that do not exist. */
    assert_int_equal(annulus_knows(ANNULUS_FEATURE_DTYPE, (INT64_C(1) << 32) + ANNULUS_FLOAT32), 0);
    assert_int_equal(annulus_knows(ANNULUS_FEATURE_STATUS, (INT64_C(1) << 32) + ANNULUS_ERROR_COMM), 0);
    const int no_feature[] = {0, ANNULUS_FEATURE_BRANCH_KIND + 1, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; ++i) {
        assert_int_equal(annulus_knows(ANNULUS_FEATURE_FEATURE, no_feature[i]), 0);
        for (int value = 0; value < 8; ++value)
            assert_int_equal(annulus_knows((annulus_feature)no_feature[i], value), 0);
    }
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
    assert_refused(annulus_config_add_preset(c, NULL), ARGUMENT, "name");
    assert_refused(annulus_config_add_preset(c, "GigaPath"), ARGUMENT, "name");
    assert_string_equal(annulus_last_error(), "name is \"GigaPath\"; it must be one of the presets: gigapath");
    assert_refused(annulus_config_add_preset(c, "giga\npath\x7f\xff"), ARGUMENT, "name is \"giga?path??\"");
    assert_refused(annulus_config_add_preset(c, "gigapath"), ARGUMENT, "config has 2 branches");
    assert_branch_count(c, 2); /* none was half added */
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
    const annulus_engine engines[] = {ANNULUS_ENGINE_GEMM, ANNULUS_ENGINE_FUSED, ANNULUS_ENGINE_MMA};
    for (size_t i = 0; i < sizeof engines / sizeof *engines; ++i) {
        assert_ok(annulus_config_set_engine(f->config, engines[i]));
        assert_refused(annulus_context_set_config(f->context, f->config), ANNULUS_ERROR_UNSUPPORTED,
                       annulus_engine_name(engines[i]));
    }
    assert_ok(forward_call.run(f)); /* the context has kept its config */
}

/* The functions that answer a question about a problem. A refusal leaves the answer as it was. */
typedef annulus_status (*question)(annulus_context *context, const annulus_problem *problem, annulus_pass pass);

static annulus_status ask_estimate(annulus_context *context, const annulus_problem *problem, annulus_pass pass) {
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    const annulus_estimate untouched = estimate;
    const annulus_status status = annulus_estimate_problem(context, problem, pass, ANNULUS_ALL_BRANCHES, &estimate);
    if (status != ANNULUS_OK)
        assert_same_estimates(&estimate, &untouched);
    return status;
}

static annulus_status ask_estimate_of_rank(annulus_context *context, const annulus_problem *problem,
                                           annulus_pass pass) {
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    const annulus_estimate untouched = estimate;
    annulus_shards even = ANNULUS_SHARDS_INIT;
    even.ranks = 2;
    const annulus_status status = annulus_estimate_rank(context, problem, pass, &even, 0, &estimate);
    if (status != ANNULUS_OK)
        assert_same_estimates(&estimate, &untouched);
    return status;
}

static annulus_status ask_workspace(annulus_context *context, const annulus_problem *problem, annulus_pass pass) {
    uint64_t bytes = 77;
    const annulus_status status = annulus_workspace_size(context, problem, pass, &bytes);
    if (status != ANNULUS_OK)
        assert_int_equal(bytes, 77);
    return status;
}

static annulus_status ask_engine(annulus_context *context, const annulus_problem *problem, annulus_pass pass) {
    annulus_engine engine = ANNULUS_ENGINE_MMA;
    const annulus_status status = annulus_select_engine(context, problem, pass, &engine);
    if (status != ANNULUS_OK)
        assert_int_equal(engine, ANNULUS_ENGINE_MMA);
    return status;
}

static annulus_status ask_about_engine(annulus_context *context, const annulus_problem *problem, annulus_pass pass) {
    return annulus_check_engine(context, problem, pass, ANNULUS_ENGINE_CPU);
}

static void assert_questions_refused(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                     annulus_status wanted, const char *name) {
    const question all[] = {ask_estimate, ask_estimate_of_rank, ask_workspace, ask_engine, ask_about_engine};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        assert_refused(all[i](context, problem, pass), wanted, name);
        assert_int_equal(annulus_last_error_bytes() > 1, wanted == ANNULUS_ERROR_WORKSPACE);
    }
}

static void context_without_config(void **state) {
    fixture *f = *state;
    annulus_context *const configured = f->context;
    const annulus_problem problem = fixture_problem();
    assert_ok(annulus_context_create(&f->context, ANNULUS_DEVICE_CPU, 0));
    assert_calls_refused(f, ARGUMENT, "config", "no config");
    annulus_config *config = NULL;
    assert_refused(annulus_context_copy_config(&config, f->context), ARGUMENT, "config");
    assert_null(config);
    assert_questions_refused(f->context, &problem, ANNULUS_PASS_FORWARD, ARGUMENT, "config");
    annulus_context_destroy(f->context);
    f->context = configured;
}

/* Configs that are legal but do not fit this problem. */
static void config_does_not_fit(void **state) {
    fixture *f = *state;
    const annulus_problem problem = fixture_problem();
    for (int defect = 0; defect < 4; ++defect) {
        annulus_config *config = NULL;
        assert_ok(annulus_config_copy(&config, f->config));
        annulus_branch branch = ANNULUS_BRANCH_INIT(0, 2);
        if (defect == 0) {
            branch.first_head = HEADS - 1;
            branch.head_count = 2;
        } else if (defect == 1) {
            branch.first_head = 1 << 30;
            branch.head_count = (1 << 30) - 1;
        } else if (defect == 2) {
            branch.first_head = HEADS; /* and all heads after it: none */
        } else {
            branch.order = ANNULUS_ORDER_HILBERT;
            branch.grid_width = LENGTH - 1;
        }
        assert_ok(annulus_config_add_branch(config, &branch, NULL));
        assert_ok(annulus_context_set_config(f->context, config));
        assert_calls_refused(f, ARGUMENT, NULL, "config");
        assert_questions_refused(f->context, &problem, ANNULUS_PASS_FORWARD, ARGUMENT, NULL);
        annulus_config_destroy(config);
    }
}

/* zeroed_problems() has fields that are 0. */
static void problem_fields(void **state) {
    fixture *f = *state;
    static const bad_field wrong[] = {
        {"size", FIELD(annulus_problem, size), sizeof(annulus_problem) - 8},
        {"dtype", FIELD(annulus_problem, dtype), 5},
        {"heads", FIELD(annulus_problem, heads), -4},
        {"kv_heads", FIELD(annulus_problem, heads), 5},
        {"kv_heads", FIELD(annulus_problem, kv_heads), -2},
        {"kv_heads", FIELD(annulus_problem, kv_heads), 3},
        {"head_dim", FIELD(annulus_problem, head_dim), -8},
        {"batch", FIELD(annulus_problem, batch), -1},
        {NULL, FIELD(annulus_problem, batch), INT64_MAX},
        {"query_length", FIELD(annulus_problem, query_length), -1},
        {"query_length", FIELD(annulus_problem, query_length), 1},
        {"query_length", FIELD(annulus_problem, query_length), LENGTH - 1},
        {"query_length", FIELD(annulus_problem, query_length), LENGTH + 1},
        {"query_length", FIELD(annulus_problem, query_length), INT64_MIN},
        {"gradient_dtype", FIELD(annulus_problem, gradient_dtype), ANNULUS_FLOAT16},
        {"gradient_dtype", FIELD(annulus_problem, gradient_dtype), 5},
        {"row_alignment", FIELD(annulus_problem, row_alignment), -1},
        {"row_alignment", FIELD(annulus_problem, row_alignment), 3},
        {"row_alignment", FIELD(annulus_problem, row_alignment), 8192},
        {"row_alignment", FIELD(annulus_problem, row_alignment), INT64_MIN},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        annulus_problem problem = fixture_problem();
        set_field(&problem, &wrong[i]);
        assert_questions_refused(f->context, &problem, ANNULUS_PASS_BACKWARD, ARGUMENT, wrong[i].name);
    }
    annulus_problem problem = fixture_problem();
    problem.head_dim = 12;
    assert_questions_refused(f->context, &problem, ANNULUS_PASS_FORWARD, ANNULUS_ERROR_UNSUPPORTED, "head_dim");
}

/* An unset field never means an empty problem: it is refused by its name. */
static void zeroed_problems(void **state) {
    fixture *f = *state;
    const annulus_problem given = fixture_problem();
    annulus_problem problem;
    uint64_t bytes = 0;
    memset(&problem, 0, sizeof problem);
    static const bad_field unset[] = {
        {"problem", FIELD(annulus_problem, size), 0},
        {"dtype", FIELD(annulus_problem, dtype), 0},
        {"heads", FIELD(annulus_problem, heads), 0},
        {"kv_heads", FIELD(annulus_problem, kv_heads), 0},
        {"head_dim", FIELD(annulus_problem, head_dim), 0},
        {"batch", FIELD(annulus_problem, batch), 0},
        {"sequence_length", FIELD(annulus_problem, sequence_length), 0},
    };
    for (size_t i = 0; i < sizeof unset / sizeof *unset; ++i) {
        assert_questions_refused(f->context, &problem, ANNULUS_PASS_FORWARD, ARGUMENT, unset[i].name);
        memcpy((char *)&problem + unset[i].offset, (const char *)&given + unset[i].offset, unset[i].bytes);
    }
    assert_ok(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes));
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    options.flags = ANNULUS_CALL_QUERY_WINDOW;
    problem.options = &options;
    assert_refused(annulus_workspace_size(f->context, &problem, ANNULUS_PASS_FORWARD, &bytes), ARGUMENT,
                   "query_length");
}

static void questions(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    const annulus_pass pass = ANNULUS_PASS_FORWARD;
    assert_questions_refused(NULL, &problem, pass, ARGUMENT, "context");
    assert_questions_refused(f->context, NULL, pass, ARGUMENT, "problem");
    const int no_pass[] = {0, 4, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; ++i)
        assert_questions_refused(f->context, &problem, (annulus_pass)no_pass[i], ARGUMENT, "pass");
    assert_refused(annulus_estimate_problem(f->context, &problem, pass, -1, NULL), ARGUMENT, "estimate");
    assert_refused(annulus_estimate_problem(f->context, &problem, pass, -2, &estimate), ARGUMENT, "branch");
    assert_refused(annulus_estimate_problem(f->context, &problem, pass, 2, &estimate), ARGUMENT, "branch");
    assert_refused(annulus_workspace_size(f->context, &problem, pass, NULL), ARGUMENT, "bytes");
    assert_refused(annulus_select_engine(f->context, &problem, pass, NULL), ARGUMENT, "engine");
    const int no_engine[] = {-1, 100, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; ++i)
        assert_refused(annulus_check_engine(f->context, &problem, pass, (annulus_engine)no_engine[i]), ARGUMENT,
                       "engine");
    assert_ok(annulus_config_set_workspace_limit(f->config, 1));
    assert_ok(annulus_context_set_config(f->context, f->config));
    assert_questions_refused(f->context, &problem, ANNULUS_PASS_BACKWARD, ANNULUS_ERROR_WORKSPACE, "workspace");
}

static void hilbert_curves(void **state) {
    (void)state;
    int64_t positions[12];
    memset(positions, 0xA5, sizeof positions);
    const int64_t first = positions[0];
    assert_refused(annulus_hilbert_curve(12, 4, NULL), ARGUMENT, "positions");
    assert_refused(annulus_hilbert_curve(0, 0, positions), ARGUMENT, "length");
    assert_refused(annulus_hilbert_curve(-12, 4, positions), ARGUMENT, "length");
    assert_refused(annulus_hilbert_curve(12, -1, positions), ARGUMENT, "width");
    assert_refused(annulus_hilbert_curve(12, 5, positions), ARGUMENT, "width");
    assert_refused(annulus_hilbert_curve(12, 24, positions), ARGUMENT, "width");
    assert_true(positions[0] == first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(null_handles),
        TEST(branches),
        TEST(windows),
        TEST(global_positions),
        TEST(branches_of_the_first_version),
        TEST(sized_structs),
        TEST(getters),
        TEST(config_numbers),
        TEST(enumerations),
        TEST(known_values),
        TEST(presets),
        TEST(context_settings),
        TEST(engines_of_other_devices),
        TEST(context_without_config),
        TEST(config_does_not_fit),
        TEST(problem_fields),
        TEST(zeroed_problems),
        TEST(questions),
        TEST(hilbert_curves),
    };
    return RUN_TESTS(tests);
}
