/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimates of problems that no machine could compute. They answer, or say what is too much, in a time that does not
 * depend on the sizes. The deadlines are far above the usual times. Without bounds on the work most estimates would
 * take minutes to years.
 */
#include "fixture.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SECONDS_EACH = 5 }; /* of processor time */

typedef struct sizes {
    int64_t length;
    int32_t heads, kv_heads, ranks; /* ranks 0: alone */
} sizes;

static annulus_problem problem_of(const sizes *s) {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = ANNULUS_FLOAT32;
    problem.heads = s->heads;
    problem.kv_heads = s->kv_heads;
    problem.head_dim = 8;
    problem.batch = 1;
    problem.sequence_length = s->length;
    return problem;
}

/* Replaces the fixture's context by one with these branches. */
static void use_branches(fixture *f, int count, int64_t (*segment)(int, int64_t), int64_t (*dilation)(int),
                         int64_t length, annulus_phase_rule phase, annulus_query_rule query, annulus_order order,
                         int causal) {
    annulus_config *config = NULL;
    assert_ok(annulus_config_create(&config));
    for (int i = 0; i < count; ++i) {
        annulus_branch branch = ANNULUS_BRANCH_INIT(segment(i, length), dilation(i));
        branch.phase_rule = phase;
        branch.query_rule = query;
        branch.order = order;
        assert_ok(annulus_config_add_branch(config, &branch, NULL));
    }
    assert_ok(annulus_config_set_causal(config, causal));
    assert_ok(annulus_context_set_config(f->context, config));
    annulus_config_destroy(config);
}

/* Asks for every estimate of a problem. Fails if one takes too long or is refused without a reason. Returns the status.
 */
static annulus_status ask(const fixture *f, const sizes *s, const char *what) {
    const annulus_problem problem = problem_of(s);
    const clock_t start = clock();
    annulus_status status = ANNULUS_OK;
    const annulus_shards shards = {sizeof shards, s->ranks, 0, NULL, NULL};
    for (int c = 0; c < CALLS && status == ANNULUS_OK; ++c) {
        const annulus_pass pass = all_calls[c]->pass;
        annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
        status = s->ranks == 0 ? annulus_estimate_problem(f->context, &problem, pass, ANNULUS_ALL_BRANCHES, &estimate)
                               : annulus_estimate_rank(f->context, &problem, pass, &shards, s->ranks / 2, &estimate);
    }
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (seconds > SECONDS_EACH)
        fail_msg("%s: %g s", what, seconds);
    if (status != ANNULUS_OK) {
        if (status != ANNULUS_ERROR_UNSUPPORTED || s->ranks == 0)
            fail_msg("%s: %s", what, annulus_last_error());
        if (!strstr(annulus_last_error(), "steps"))
            fail_msg("%s: '%s' does not say what is too much", what, annulus_last_error());
    }
    return status;
}

static int64_t halved_segment(int i, int64_t length) {
    return i % 3 == 0 || length >> i <= i ? 0 : (length >> i) - i;
}

static int64_t odd_dilation(int i) {
    return ((int64_t)1 << i % 50) + i;
}

/* 64 branches under all rules in both orders, with the longest sequence that the heads allow. */
static void the_largest_problems(void **state) {
    fixture *f = *state;
    const sizes all[] = {
        {(int64_t)1 << 54, 1, 1, 0},        {(int64_t)1 << 38, 65536, 65536, 0}, {(int64_t)1 << 38, 65536, 256, 0},
        {(int64_t)1 << 38, 65536, 1, 0},    {(int64_t)1 << 54, 1, 1, 4096},      {(int64_t)1 << 38, 65536, 65536, 4096},
        {(int64_t)1 << 38, 65536, 1, 4096},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i)
        for (int phase = ANNULUS_PHASE_BLOCK; phase <= ANNULUS_PHASE_FIXED; ++phase)
            for (int query = ANNULUS_QUERY_DILATED; query <= ANNULUS_QUERY_EVERY; ++query)
                for (int order = ANNULUS_ORDER_LINEAR; order <= ANNULUS_ORDER_HILBERT; ++order) {
                    char what[100];
                    snprintf(what, sizeof what, "2^38 or more positions %zu, phase %d, query %d, order %d", i, phase,
                             query, order);
                    use_branches(f, 64, halved_segment, odd_dilation, all[i].length, phase, query, order, i % 2 == 0);
                    ask(f, &all[i], what);
                }
}

static int64_t whole(int i, int64_t length) {
    (void)i, (void)length;
    return 0;
}

static int64_t four(int i) {
    (void)i;
    return 4;
}

/* A billion positions along one curve are planned by the borders between ranks. If the length has no divisors, the grid
 * has one row. */
static void along_long_curves(void **state) {
    fixture *f = *state;
    const sizes billion = {(int64_t)1 << 30, 4, 4, 8}, prime = {((int64_t)1 << 54) - 33, 1, 1, 0};
    use_branches(f, 1, whole, four, 0, ANNULUS_PHASE_BLOCK, ANNULUS_QUERY_DILATED, ANNULUS_ORDER_HILBERT, 0);
    assert_int_equal(ask(f, &billion, "a billion positions along a curve"), ANNULUS_OK);
    assert_int_equal(ask(f, &prime, "a prime number of positions"), ANNULUS_OK);
    const sizes largest = {(int64_t)1 << 54, 1, 1, 2};
    assert_int_equal(ask(f, &largest, "2^54 positions along a curve"), ANNULUS_ERROR_UNSUPPORTED);
    assert_non_null(strstr(annulus_last_error(), "branch 0 in the Hilbert order"));
}

static int64_t prime_dilation(int i) {
    int64_t prime = 2;
    for (; i >= 0; ++prime) {
        int64_t divisor = 2;
        while (prime % divisor != 0)
            ++divisor;
        i -= divisor == prime;
    }
    return prime - 1;
}

/* Several branches with coprime dilations: which rows ranks need of one another. */
static void coprime_dilations(void **state) {
    fixture *f = *state;
    use_branches(f, 32, whole, prime_dilation, 0, ANNULUS_PHASE_FIXED, ANNULUS_QUERY_DILATED, ANNULUS_ORDER_LINEAR, 0);
    const sizes some = {1 << 22, 1, 1, 2}, too_many = {(int64_t)1 << 50, 1, 1, 2};
    assert_int_equal(ask(f, &some, "32 prime dilations"), ANNULUS_OK);
    assert_int_equal(ask(f, &too_many, "32 prime dilations of 2^50 positions"), ANNULUS_ERROR_UNSUPPORTED);
    assert_non_null(strstr(annulus_last_error(), "one by one"));
}

/* LongNet's pattern on the largest number of ranks. */
static int64_t longnet_segment(int i, int64_t length) {
    (void)length;
    return (int64_t)1 << (11 + 2 * i);
}

static int64_t longnet_dilation(int i) {
    return (int64_t)1 << 2 * i;
}

static void a_billion_tokens_on_4096_ranks(void **state) {
    fixture *f = *state;
    const sizes s = {(int64_t)1 << 30, 16, 16, 4096};
    use_branches(f, 11, longnet_segment, longnet_dilation, 0, ANNULUS_PHASE_BLOCK, ANNULUS_QUERY_DILATED,
                 ANNULUS_ORDER_LINEAR, 0);
    assert_int_equal(ask(f, &s, "a billion tokens"), ANNULUS_OK);
}

static annulus_estimate estimate_of(const fixture *f, const annulus_problem *problem, annulus_pass pass) {
    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    assert_ok(annulus_estimate_problem(f->context, problem, pass, ANNULUS_ALL_BRANCHES, &estimate));
    return estimate;
}

static void assert_same_costs(const fixture *f, const annulus_problem *a, const annulus_problem *b) {
    for (int c = 0; c < CALLS; ++c) {
        const annulus_estimate one = estimate_of(f, a, all_calls[c]->pass);
        const annulus_estimate other = estimate_of(f, b, all_calls[c]->pass);
        assert_same_estimates(&one, &other);
        assert_true(one.pairs > 0);
    }
}

static void query_windows(void **state) {
    fixture *f = *state;
    const annulus_problem whole = fixture_problem();
    annulus_problem said = whole;
    said.query_length = LENGTH;
    assert_same_costs(f, &whole, &said);

    /* A window of all rows is the whole problem; the pairs of two parts add up to its pairs. */
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    options.flags = ANNULUS_CALL_QUERY_WINDOW;
    said.options = &options;
    assert_same_costs(f, &whole, &said);
    double pairs = 0;
    for (int half = 0; half < 2; ++half) {
        options.query_start = half * 5;
        said.query_length = half ? LENGTH - 5 : 5;
        const annulus_estimate estimate = estimate_of(f, &said, ANNULUS_PASS_FORWARD);
        pairs += estimate.pairs;
        assert_true(estimate.tensor_bytes ==
                    sizeof(float) * BATCH *
                        (uint64_t)(said.query_length * HEADS * (2 * DIM + 1) + 2 * LENGTH * KV_HEADS * DIM));
    }
    assert_true(pairs == estimate_of(f, &whole, ANNULUS_PASS_FORWARD).pairs);

    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    const struct {
        int64_t start, length;
        const char *name;
    } wrong[] = {{0, 0, "query_length"},         {0, -1, "query_length"},      {0, LENGTH + 1, "query_length"},
                 {0, INT64_MAX, "query_length"}, {-1, 5, "query_start"},       {INT64_MIN, 5, "query_start"},
                 {LENGTH - 4, 5, "query_start"}, {INT64_MAX, 5, "query_start"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        options.query_start = wrong[i].start;
        said.query_length = wrong[i].length;
        assert_refused(
            annulus_estimate_problem(f->context, &said, ANNULUS_PASS_FORWARD, ANNULUS_ALL_BRANCHES, &estimate),
            ANNULUS_ERROR_ARGUMENT, wrong[i].name);
    }
    assert_true(estimate.pairs == 0);
}

/* The options are checked like those of a call. */
static void options_of_the_call(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    const annulus_problem without = problem;
    const annulus_shards two = {sizeof two, 2, 0, NULL, NULL};
    const int64_t starts[] = {0, LENGTH + 1}, lengths[] = {LENGTH};
    problem.options = &options;
    assert_same_costs(f, &problem, &without);

    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    uint64_t bytes = 77;
    const annulus_pass forward = ANNULUS_PASS_FORWARD, backward = ANNULUS_PASS_BACKWARD;
    options.flags = 1024;
    assert_refused(annulus_estimate_problem(f->context, &problem, backward, -1, &estimate), ANNULUS_ERROR_ARGUMENT,
                   "flags");
    options.flags = ANNULUS_CALL_ADD_D_K;
    assert_ok(annulus_estimate_problem(f->context, &problem, backward, -1, &estimate));
    assert_refused(annulus_estimate_problem(f->context, &problem, forward, -1, &estimate), ANNULUS_ERROR_ARGUMENT,
                   "flags");
    assert_refused(annulus_workspace_size(f->context, &problem, forward, &bytes), ANNULUS_ERROR_ARGUMENT, "flags");
    options.flags = 0;
    options.query_start = 2;
    assert_refused(annulus_estimate_problem(f->context, &problem, backward, -1, &estimate), ANNULUS_ERROR_ARGUMENT,
                   "query_start");
    options.flags = ANNULUS_CALL_QUERY_WINDOW;
    problem.query_length = 3;
    assert_ok(annulus_estimate_problem(f->context, &problem, backward, -1, &estimate));
    assert_refused(annulus_estimate_rank(f->context, &problem, forward, &two, 0, &estimate), ANNULUS_ERROR_UNSUPPORTED,
                   "ANNULUS_CALL_QUERY_WINDOW");

    problem = without;
    problem.options = &options;
    options.flags = 0;
    options.query_start = 0;
    options.sequence_count = 1;
    options.sequence_starts = starts;
    assert_refused(annulus_estimate_problem(f->context, &problem, forward, -1, &estimate), ANNULUS_ERROR_ARGUMENT,
                   "sequence_starts");
    options.sequence_starts = NULL;
    options.sequence_lengths = lengths;
    assert_refused(annulus_estimate_problem(f->context, &problem, forward, -1, &estimate), ANNULUS_ERROR_ARGUMENT,
                   "sequence_count");
    assert_int_equal(bytes, 77);

    annulus_problem one = without;
    one.batch = problem.batch = 1;
    /* Only the plan differs. */
    assert_true(estimate_of(f, &problem, forward).pairs == estimate_of(f, &one, forward).pairs);
    assert_true(estimate_of(f, &problem, forward).workspace_bytes == estimate_of(f, &one, forward).workspace_bytes);
}

/* Pairs and operations are those of the sequences, each alone. Tensors are those of all rows. */
static void sequences_add_up(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    const int64_t starts[] = {1, 4, 4, 11, 12}, lengths[] = {3, 0, 5, 1};
    const annulus_pass backward = ANNULUS_PASS_BACKWARD;
    const annulus_estimate rows = estimate_of(f, &problem, backward);
    double pairs = 0, flops = 0;
    for (int i = 0; i < 4; ++i) {
        annulus_problem alone = problem;
        alone.sequence_length = lengths[i];
        if (lengths[i] == 0)
            continue;
        pairs += estimate_of(f, &alone, backward).pairs;
        flops += estimate_of(f, &alone, backward).flops;
    }
    problem.options = &options;
    options.sequence_count = 4;
    options.sequence_starts = starts;
    options.sequence_lengths = lengths;
    const annulus_estimate all = estimate_of(f, &problem, backward);
    assert_true(all.pairs == pairs && pairs > 0);
    assert_true(all.flops == flops);
    assert_true(all.tensor_bytes == rows.tensor_bytes);

    /* One entry of each length in a padded batch. */
    const int64_t padded[] = {5, 12};
    options.sequence_count = BATCH;
    options.sequence_starts = NULL;
    options.sequence_lengths = padded;
    annulus_problem alone = fixture_problem();
    alone.batch = 1;
    pairs = estimate_of(f, &alone, backward).pairs;
    alone.sequence_length = 5;
    assert_true(estimate_of(f, &problem, backward).pairs == pairs + estimate_of(f, &alone, backward).pairs);
}

/* Gradients are counted by their dtype. On a CPU, 16-bit gradients need float32 copies, whatever they are rounded to.
 * float32 gradients need copies if they are added to. */
static void gradients_of_the_call(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    const annulus_pass forward = ANNULUS_PASS_FORWARD, backward = ANNULUS_PASS_BACKWARD;
    const uint64_t queries = BATCH * LENGTH * HEADS * DIM, keys = BATCH * LENGTH * KV_HEADS * DIM;
    const uint64_t statistics = BATCH * LENGTH * HEADS * sizeof(float);
    annulus_estimate plain = estimate_of(f, &problem, backward), other = ANNULUS_ESTIMATE_INIT;
    const annulus_dtype wrong[] = {ANNULUS_FLOAT64, ANNULUS_BFLOAT16, ANNULUS_FLOAT16, (annulus_dtype)5};
    for (int i = 0; i < 4; ++i) {
        problem.gradient_dtype = wrong[i];
        assert_refused(annulus_estimate_problem(f->context, &problem, backward, -1, &other), ANNULUS_ERROR_ARGUMENT,
                       "gradient_dtype");
    }
    problem.gradient_dtype = ANNULUS_FLOAT32;
    problem.options = &options;
    other = estimate_of(f, &problem, backward);
    assert_same_estimates(&plain, &other);
    options.flags = ANNULUS_CALL_ADD_D_K;
    assert_true(estimate_of(f, &problem, backward).workspace_bytes == plain.workspace_bytes + 4 * keys);

    options.flags = 0;
    problem.dtype = ANNULUS_BFLOAT16;
    problem.gradient_dtype = ANNULUS_DTYPE_NONE;
    plain = estimate_of(f, &problem, backward);
    const annulus_estimate plain_forward = estimate_of(f, &problem, forward);
    assert_true(plain_forward.tensor_bytes == 4 * queries + 4 * keys + statistics);
    assert_true(plain.tensor_bytes == plain_forward.tensor_bytes + 4 * queries + 4 * keys);
    problem.gradient_dtype = ANNULUS_FLOAT32;
    other = estimate_of(f, &problem, backward);
    assert_true(other.tensor_bytes == plain_forward.tensor_bytes + 6 * queries + 8 * keys);
    assert_true(other.workspace_bytes == plain.workspace_bytes);
    other = estimate_of(f, &problem, forward);
    assert_same_estimates(&plain_forward, &other);
}

/* H/G / D rounds, rounded up. */
static void masses_take_rounds(void **state) {
    fixture *f = *state;
    annulus_problem problem = fixture_problem();
    problem.kv_heads = 1;
    problem.batch = 1;
    for (int32_t heads = 1; heads <= 3 * DIM + 1; ++heads) {
        problem.heads = heads;
        const annulus_estimate mass = estimate_of(f, &problem, ANNULUS_PASS_MASS);
        assert_true(mass.pairs == estimate_of(f, &problem, ANNULUS_PASS_FORWARD).pairs);
        assert_true(mass.flops == 4 * mass.pairs * DIM * ((heads + DIM - 1) / DIM));
        assert_true(mass.tensor_bytes ==
                    sizeof(float) * LENGTH * (uint64_t)(heads * DIM + DIM + heads + heads)); /* q, k, lse, mass */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_largest_problems), TEST(along_long_curves),
        TEST(coprime_dilations),    TEST(a_billion_tokens_on_4096_ranks),
        TEST(query_windows),        TEST(options_of_the_call),
        TEST(sequences_add_up),     TEST(gradients_of_the_call),
        TEST(masses_take_rounds),
    };
    return RUN_TESTS(tests);
}
