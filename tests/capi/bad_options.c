/* SPDX-License-Identifier: Apache-2.0 */
/* Makes every option of a call wrong, one at a time, and checks valid options. */
#include "fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENT ANNULUS_ERROR_ARGUMENT

static annulus_call_options fresh(void) {
    const annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    return options;
}

/* Checks that all passes refuse the options, with `words` in the message. */
static void assert_options_refused(fixture *f, const annulus_call_options *options, const char *name,
                                   const char *words) {
    for (int c = 0; c < CALLS; ++c) {
        f->options = options;
        assert_call_refused(f, all_calls[c], ARGUMENT, name, words);
        if (!strstr(annulus_last_error(), words))
            fail_msg("%s: \"%s\" does not say \"%s\"", all_calls[c]->name, annulus_last_error(), words);
        f->options = NULL;
    }
}

typedef struct options_call {
    fixture *f;
    const call *call;
} options_call;

static annulus_status call_with_options(void *context, void *options) {
    const options_call *c = context;
    mark_outputs(c->f, c->call);
    c->f->options = options;
    const annulus_status status = c->call->run(c->f);
    c->f->options = NULL;
    if (status != ANNULUS_OK)
        assert_outputs_untouched(c->f, c->call, "options");
    return status;
}

static void sizes(void **state) {
    fixture *f = *state;
    annulus_call_options options = fresh();
    for (int c = 0; c < CALLS; ++c) {
        options_call call = {f, all_calls[c]};
        assert_ok(assert_sized(call_with_options, &call, &options, sizeof options,
                               FIRST_BYTES(annulus_call_options, sequence_lengths), "options"));
    }
}

/* NULL and fresh options give the same bits in the results. */
static void fresh_options_are_none(void **state) {
    fixture *f = *state;
    const annulus_call_options options = fresh();
    const size_t bytes = sizeof(float) * BATCH * LENGTH * HEADS * DIM;
    for (int c = 0; c < CALLS; ++c) {
        const void *result = f->tensors[all_calls[c]->outputs[0]].data;
        void *without = malloc(bytes);
        assert_non_null(without);
        mark_outputs(f, all_calls[c]);
        assert_ok(all_calls[c]->run(f));
        memcpy(without, result, bytes);
        mark_outputs(f, all_calls[c]);
        f->options = &options;
        assert_ok(all_calls[c]->run(f));
        assert_memory_equal(result, without, bytes);
        free(without);
        f->options = NULL;
    }
}

static void flags(void **state) {
    fixture *f = *state;
    annulus_call_options options = fresh();
    const uint64_t unknown[] = {16, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX};
    for (int i = 0; i < 4; ++i) {
        options.flags = unknown[i];
        assert_options_refused(f, &options, "flags", "it may have the bits 0xf");
    }
    const uint64_t gradient_flags[] = {ANNULUS_CALL_ADD_D_Q, ANNULUS_CALL_ADD_D_K, ANNULUS_CALL_ADD_D_V};
    f->options = &options;
    for (int i = 0; i < 3; ++i) {
        options.flags = gradient_flags[i];
        assert_call_refused(f, &forward_call, ARGUMENT, "flags", "gradients in forward");
        assert_call_refused(f, &mass_call, ARGUMENT, "flags", "gradients in mass");
    }
    f->options = NULL;
}

/* Each flag adds to its own tensor. */
static void added_gradients(void **state) {
    fixture *f = *state;
    enum { MOST_ELEMENTS = BATCH * LENGTH * HEADS * DIM };
    static float gradients[3][MOST_ELEMENTS];
    const enum argument outputs[] = {D_Q, D_K, D_V};
    annulus_call_options options = fresh();
    f->options = &options;
    assert_ok(backward_call.run(f));
    for (int i = 0; i < 3; ++i)
        memcpy(gradients[i], f->tensors[outputs[i]].data, sizeof *gradients);
    for (uint64_t bits = 0; bits < 8; ++bits) {
        options.flags = bits * ANNULUS_CALL_ADD_D_Q;
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < MOST_ELEMENTS; ++j)
                ((float *)f->tensors[outputs[i]].data)[j] = 1000;
        assert_ok(backward_call.run(f));
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < MOST_ELEMENTS / (i ? HEADS / KV_HEADS : 1); ++j) {
                const float sum = (bits >> i & 1 ? 1000 : 0) + gradients[i][j];
                assert_true(((const float *)f->tensors[outputs[i]].data)[j] == sum);
            }
    }
    f->options = NULL;
}

static void set_dtypes(fixture *f, annulus_dtype input_dtype) {
    for (int i = 0; i < ARGUMENTS; ++i)
        if (i != LSE && i != D_LSE && i != MASS)
            f->tensors[i].dtype = input_dtype;
}

/* Each gradient of 16-bit inputs may be float32. No other gradient may have another dtype than q. */
static void gradient_dtypes(void **state) {
    fixture *f = *state;
    const annulus_dtype all[] = {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
    const enum argument outputs[] = {D_Q, D_K, D_V};
    for (int i = 0; i < 3; ++i)
        for (int input = 1; input < 4; ++input) /* the fixture's memory is too small for float64 */
            for (int output = 0; output < 4; ++output) {
                set_dtypes(f, all[input]);
                f->tensors[outputs[i]].dtype = all[output];
                if (output == input || (output == 1 && input > 1))
                    assert_ok(backward_call.run(f));
                else
                    assert_call_refused(f, &backward_call, ARGUMENT, argument_names[outputs[i]], "dtype");
            }
    set_dtypes(f, ANNULUS_BFLOAT16);
    f->tensors[D_K].dtype = ANNULUS_FLOAT16;
    assert_call_refused(f, &backward_call, ARGUMENT, "d_k", "dtype");
    assert_non_null(
        strstr(annulus_last_error(), "dtype of d_k is 4 (float16); it must be 3 (bfloat16) or 2 (float32)"));
    /* Rows of float32 take twice the memory. If d_q then reaches into d_k, they overlap. */
    f->tensors[D_K].dtype = ANNULUS_BFLOAT16;
    f->tensors[D_K].data = (char *)f->tensors[D_Q].data + (size_t)2 * BATCH * LENGTH * HEADS * DIM;
    assert_ok(backward_call.run(f));
    f->tensors[D_Q].dtype = ANNULUS_FLOAT32;
    assert_call_refused(f, &backward_call, ARGUMENT, "d_q", "overlap");
}

static void query_windows(void **state) {
    fixture *f = *state;
    annulus_call_options options = fresh();
    options.query_start = 1;
    assert_options_refused(f, &options, "query_start", "without ANNULUS_CALL_QUERY_WINDOW in flags it must be 0");
    options.flags = ANNULUS_CALL_QUERY_WINDOW;
    const int64_t starts[] = {-1, 1, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 4; ++i) {
        options.query_start = starts[i];
        assert_options_refused(f, &options, "query_start", "the 12 rows of q");
    }
    options.query_start = 0;
    f->options = &options;
    for (int c = 0; c < CALLS; ++c)
        assert_ok(all_calls[c]->run(f));

    f->tensors[K].shape[1] = f->tensors[V].shape[1] = LENGTH - 1;
    f->tensors[D_K].shape[1] = f->tensors[D_V].shape[1] = f->tensors[MASS].shape[2] = LENGTH - 1;
    assert_options_refused(f, &options, "query_start", "the 11 rows of k");
    const annulus_call_options none = fresh();
    assert_options_refused(f, &none, NULL, "without a query window");
}

enum { MOST = 5 };

/* Numbers for the arrays. The call reads `count` + 1 of `starts`. */
typedef struct numbers {
    int64_t count;
    int has_starts, has_lengths;
    int64_t starts[MOST], lengths[MOST];
    const char *name, *words; /* the option in the message, and other words in it */
} numbers;

static annulus_call_options options_of(const numbers *n) {
    annulus_call_options options = fresh();
    options.sequence_count = n->count;
    options.sequence_starts = n->has_starts ? n->starts : NULL;
    options.sequence_lengths = n->has_lengths ? n->lengths : NULL;
    return options;
}

static void sequences(void **state) {
    fixture *f = *state;
    static const numbers wrong[] = {
        {-1, 1, 0, {0, 12}, {0}, "sequence_count", "sequence_count of options is -1; it must be at least 0"},
        {INT64_MIN, 0, 1, {0}, {12, 12}, "sequence_count", "it must be at least 0"},
        {2, 0, 0, {0}, {0}, "sequence_count", "sequence_starts and sequence_lengths are NULL"},
        {0, 1, 0, {0, 12}, {0}, "sequence_starts", "sequence_starts is not NULL"},
        {0, 0, 1, {0}, {12, 12}, "sequence_lengths", "sequence_lengths is not NULL"},
        {0, 1, 1, {0, 12}, {12, 12}, "sequence_starts", "sequence_starts is not NULL"},
        {1, 1, 0, {-1, 12}, {0}, "sequence_starts", "sequence_starts[0] is -1; it must be at least 0"},
        {1, 1, 0, {13, 13}, {0}, "sequence_starts", "sequence_starts[0] is 13; it must be at most 12, the rows of k"},
        {1,
         1,
         0,
         {0, -1},
         {0},
         "sequence_starts",
         "sequence_starts[1] is -1; it must be at least sequence_starts[0], 0"},
        {3,
         1,
         0,
         {0, 7, 6, 12},
         {0},
         "sequence_starts",
         "sequence_starts[2] is 6; it must be at least sequence_starts[1], 7"},
        {3,
         1,
         0,
         {0, 7, 7, 13},
         {0},
         "sequence_starts",
         "sequence_starts[3] is 13; it must be at most 12, the rows of k"},
        {3, 1, 0, {0, 7, INT64_MAX, 12}, {0}, "sequence_starts", "it must be at most 12, the rows of k"},
        {2, 1, 1, {0, 7, 12}, {7, -1}, "sequence_lengths", "sequence_lengths[1] is -1; it must be at least 0"},
        {2,
         1,
         1,
         {0, 7, 12},
         {8, 5},
         "sequence_lengths",
         "sequence_lengths[0] is 8; it must be at most 7, the rows up to the next start"},
        {2, 1, 1, {0, 7, 11}, {7, 5}, "sequence_lengths", "sequence_lengths[1] is 5; it must be at most 4"},
        {1, 0, 1, {0}, {12}, "sequence_count", "without sequence_starts it must be the batch, 2"},
        {3, 0, 1, {0}, {12, 12, 12}, "sequence_count", "without sequence_starts it must be the batch, 2"},
        {2, 0, 1, {0}, {-3, 12}, "sequence_lengths", "sequence_lengths[0] is -3; it must be at least 0"},
        {2, 0, 1, {0}, {12, 13}, "sequence_lengths", "sequence_lengths[1] is 13; it must be at most 12, the rows of k"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        const annulus_call_options options = options_of(&wrong[i]);
        assert_options_refused(f, &options, wrong[i].name, wrong[i].words);
    }
}

static int is_of_a_sequence(const annulus_call_options *options, int64_t entry, int64_t row) {
    if (!options->sequence_starts)
        return row < options->sequence_lengths[entry];
    for (int64_t i = 0; i < options->sequence_count; ++i) {
        const int64_t start = options->sequence_starts[i];
        const int64_t end =
            options->sequence_lengths ? start + options->sequence_lengths[i] : options->sequence_starts[i + 1];
        if (row >= start && row < end)
            return 1;
    }
    return 0;
}

/* Checks a row of a tensor of dense rows (heads * DIM elements each). It must be zeros, or finite numbers that are not
 * all 0. */
static void assert_row(const fixture *f, enum argument argument, int64_t entry, int64_t row, int is_zero) {
    const annulus_tensor *t = &f->tensors[argument];
    const float *values = (const float *)t->data + entry * t->stride[0] + row * t->stride[1];
    int zeros = 0;
    for (int64_t i = 0; i < t->stride[1]; ++i) {
        if (!isfinite(values[i]))
            fail_msg("%s of row %d is not finite", argument_names[argument], (int)row);
        zeros += values[i] == 0;
    }
    if (is_zero ? zeros != t->stride[1] : zeros == t->stride[1])
        fail_msg("%s of row %d has %d zeros", argument_names[argument], (int)row, zeros);
}

/* Checks all passes. The first branch gives every query of a sequence a key. Rows of no sequence attend to nothing. */
static void assert_sequences_pass(fixture *f, const annulus_call_options *options) {
    f->options = options;
    for (int c = 0; c < CALLS; ++c) {
        mark_outputs(f, all_calls[c]);
        assert_ok(all_calls[c]->run(f));
    }
    f->options = NULL;
    for (int64_t entry = 0; entry < BATCH; ++entry)
        for (int64_t row = 0; row < LENGTH; ++row) {
            const int is_zero = !is_of_a_sequence(options, entry, row);
            const enum argument rows[] = {OUT, D_Q, D_K, D_V};
            for (int i = 0; i < 4; ++i)
                assert_row(f, rows[i], entry, row, is_zero);
            for (int64_t head = 0; head < HEADS; ++head) {
                const float lse = ((const float *)f->tensors[LSE].data)[(entry * HEADS + head) * LENGTH + row];
                const float mass = ((const float *)f->tensors[MASS].data)[(entry * HEADS + head) * LENGTH + row];
                assert_true(is_zero ? lse == -INFINITY : isfinite(lse));
                assert_true(is_zero ? mass == 0 : mass > 0 && mass < LENGTH);
            }
        }
}

static void legal_sequences(void **state) {
    fixture *f = *state;
    static const numbers legal[] = {
        {1, 1, 0, {0, 12}, {0}, NULL, NULL},          {1, 1, 0, {12, 12}, {0}, NULL, NULL},
        {4, 1, 0, {2, 2, 5, 5, 11}, {0}, NULL, NULL}, {4, 1, 1, {2, 2, 5, 5, 12}, {0, 1, 0, 7}, NULL, NULL},
        {2, 0, 1, {0}, {12, 0}, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof legal / sizeof *legal; ++i) {
        const annulus_call_options options = options_of(&legal[i]);
        assert_sequences_pass(f, &options);
    }
}

/* A grid as long as the sequence must fit each sequence that has rows. */
static void grid_widths(void **state) {
    fixture *f = *state;
    static const numbers fits = {3, 1, 0, {0, 8, 8, 12}, {0}, NULL, NULL};
    static const numbers wrong = {3, 1, 0, {0, 8, 8, 11}, {0}, NULL, NULL};
    annulus_call_options options = options_of(&fits);
    annulus_branch branch = ANNULUS_BRANCH_INIT(0, 2);
    branch.order = ANNULUS_ORDER_HILBERT;
    branch.grid_width = 4;
    assert_ok(annulus_config_add_branch(f->config, &branch, NULL));
    assert_ok(annulus_context_set_config(f->context, f->config));
    assert_sequences_pass(f, &options);
    options = options_of(&wrong);
    assert_options_refused(f, &options, "grid_width",
                           "grid_width of branch 2 is 4; it must divide the length of sequence 2, 3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(sizes),           TEST(fresh_options_are_none), TEST(flags),
        TEST(added_gradients), TEST(gradient_dtypes),        TEST(query_windows),
        TEST(sequences),       TEST(legal_sequences),        TEST(grid_widths),
    };
    return RUN_TESTS(tests);
}
