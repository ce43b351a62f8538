/* SPDX-License-Identifier: Apache-2.0 */
/*
 * annulus_merge(): makes every argument wrong, one at a time. The call refuses by name and writes nothing. Also checks
 * which tensors may overlap, and what the call does not need.
 */
#include "fixture.h"

#include <stdio.h>
#include <string.h>

/* Two parts, in memory of their own, like the results. */
enum { PARTS = 2, FIRST_OUT = 0, SECOND_OUT, FIRST_LSE, SECOND_LSE, MERGED_OUT, MERGED_LSE, TENSORS };
static const char *const names[TENSORS] = {"outs[0]", "outs[1]", "lses[0]", "lses[1]", "out", "lse"};

typedef struct merge_fixture {
    annulus_context *context;
    annulus_tensor outs[PARTS], lses[PARTS], out, lse;
    double memory[TENSORS][BATCH * LENGTH * HEADS * DIM];
} merge_fixture;

static annulus_tensor *tensor_of(merge_fixture *f, int i) {
    annulus_tensor *const tensors[TENSORS] = {&f->outs[0], &f->outs[1], &f->lses[0], &f->lses[1], &f->out, &f->lse};
    return tensors[i];
}

static int is_lse(int i) {
    return i == FIRST_LSE || i == SECOND_LSE || i == MERGED_LSE;
}

static void restore_tensors(merge_fixture *f) {
    for (int i = 0; i < TENSORS; ++i) {
        const annulus_tensor rows = {
            f->memory[i], ANNULUS_FLOAT32, 4, {BATCH, LENGTH, HEADS, DIM}, {LENGTH * HEADS * DIM, HEADS * DIM, DIM, 1}};
        const annulus_tensor numbers = {
            f->memory[i], ANNULUS_FLOAT32, 3, {BATCH, HEADS, LENGTH}, {HEADS * LENGTH, LENGTH, 1}};
        *tensor_of(f, i) = is_lse(i) ? numbers : rows;
    }
}

static merge_fixture make_fixture(void) {
    merge_fixture f;
    memset(&f, 0, sizeof f);
    assert_ok(annulus_context_create(&f.context, ANNULUS_DEVICE_CPU, 0));
    return f;
}

static annulus_status merge(merge_fixture *f) {
    return annulus_merge(f->context, PARTS, f->outs, f->lses, &f->out, &f->lse, NULL);
}

/* Call it after restore_tensors(), which points into the fixture's present place. */
static void assert_merge_refused(merge_fixture *f, annulus_status wanted, const char *name) {
    double before[TENSORS][BATCH * LENGTH * HEADS * DIM];
    memcpy(before, f->memory, sizeof before);
    assert_refused(merge(f), wanted, NULL);
    if (name && !strstr(annulus_last_error(), name))
        fail_msg("the message does not name %s: %s", name, annulus_last_error());
    assert_memory_equal(before, f->memory, sizeof before);
    restore_tensors(f);
}

static void pointers_and_count(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    restore_tensors(&f);
    assert_refused(annulus_merge(NULL, PARTS, f.outs, f.lses, &f.out, &f.lse, NULL), ANNULUS_ERROR_ARGUMENT, "context");
    assert_refused(annulus_merge(f.context, PARTS, NULL, f.lses, &f.out, &f.lse, NULL), ANNULUS_ERROR_ARGUMENT, "outs");
    assert_refused(annulus_merge(f.context, PARTS, f.outs, NULL, &f.out, &f.lse, NULL), ANNULUS_ERROR_ARGUMENT, "lses");
    assert_refused(annulus_merge(f.context, PARTS, f.outs, f.lses, NULL, &f.lse, NULL), ANNULUS_ERROR_ARGUMENT, "out");
    const int32_t counts[] = {0, -1, INT32_MIN, ANNULUS_MAX_MERGE_PARTS + 1, INT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i)
        assert_refused(annulus_merge(f.context, counts[i], f.outs, f.lses, &f.out, &f.lse, NULL),
                       ANNULUS_ERROR_ARGUMENT, "count");
    assert_ok(annulus_merge(f.context, PARTS, f.outs, f.lses, &f.out, NULL, NULL));
    assert_ok(annulus_merge(f.context, 1, f.outs, f.lses, &f.out, &f.lse, NULL));
    annulus_context_destroy(f.context);
}

/* If the call is refused, checks that nothing was written. */
static annulus_status merge_with_options(void *context, void *options) {
    merge_fixture *f = context;
    double before[TENSORS][BATCH * LENGTH * HEADS * DIM];
    memcpy(before, f->memory, sizeof before);
    const annulus_status status = annulus_merge(f->context, PARTS, f->outs, f->lses, &f->out, &f->lse, options);
    if (status != ANNULUS_OK)
        assert_memory_equal(before, f->memory, sizeof before);
    return status;
}

/* There is no flag yet. */
static void merge_options(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    restore_tensors(&f);
    annulus_merge_options options = ANNULUS_MERGE_OPTIONS_INIT;
    const uint64_t flags[] = {1, (uint64_t)1 << 31, (uint64_t)1 << 63};
    for (int i = 0; i < 3; ++i) {
        options.flags = flags[i];
        assert_refused(merge_with_options(&f, &options), ANNULUS_ERROR_ARGUMENT, "flags");
    }
    options.flags = 0;
    assert_ok(assert_sized(merge_with_options, &f, &options, sizeof options, FIRST_BYTES(annulus_merge_options, flags),
                           "options"));
    annulus_context_destroy(f.context);
}

static void tensors(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    restore_tensors(&f);
    for (int i = 0; i < TENSORS; ++i) {
        annulus_tensor *const t = tensor_of(&f, i);
        const char *const name = i == FIRST_OUT ? NULL : names[i]; /* the first part determines the other tensors */
        t->data = NULL;
        assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[i]);
        t->data = (char *)t->data + 2;
        assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[i]);
        const int dtypes[] = {0, 5, ANNULUS_FLOAT64, ANNULUS_FLOAT16, ANNULUS_BFLOAT16};
        for (int d = 0; d < 5; ++d) {
            t->dtype = (annulus_dtype)dtypes[d];
            /* The first part would have half precision and the other parts would not. */
            assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, name);
        }
        for (int ndim = 1; ndim <= 5; ++ndim)
            if (ndim != (is_lse(i) ? 3 : 4)) {
                t->ndim = ndim;
                assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[i]);
            }
        const int dimensions = is_lse(i) ? 3 : 4;
        for (int d = 0; d < dimensions; ++d) {
            const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX};
            for (int w = 0; w < 3; ++w) {
                t->shape[d] = wrong[w];
                assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, name);
                t->stride[d] = wrong[w];
                assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[i]);
            }
            t->shape[d] = d == 3 ? 2 * DIM : t->shape[d] - 1;
            t->stride[0] = i == FIRST_OUT ? BATCH * LENGTH * HEADS * DIM : t->stride[0];
            assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, name);
        }
        if (!is_lse(i))
            for (int64_t stride = 0; stride < 3; stride += 2) {
                t->stride[3] = stride;
                assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[i]);
            }
    }
    annulus_context_destroy(f.context);
}

static void head_dimension(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    const int64_t dims[] = {4, 12, 264};
    for (int d = 0; d < 3; ++d) {
        restore_tensors(&f);
        for (int i = 0; i < TENSORS; ++i)
            if (!is_lse(i))
                tensor_of(&f, i)->shape[3] = dims[d];
        assert_merge_refused(&f, ANNULUS_ERROR_UNSUPPORTED, "shape[3] of outs[0]");
    }
    annulus_context_destroy(f.context);
}

static void output_elements_are_distinct(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    restore_tensors(&f);
    for (int d = 0; d < 3; ++d) {
        f.out.stride[d] = 0;
        assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, "out");
        f.lse.stride[d] = 0;
        assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, "lse");
    }
    /* Inputs may repeat. */
    f.outs[1].stride[0] = f.outs[1].stride[1] = f.lses[1].stride[2] = 0;
    assert_ok(merge(&f));
    annulus_context_destroy(f.context);
}

/* A result may lie in the memory of a part's tensor of its kind, and overlap in no other way. */
static void overlap(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    restore_tensors(&f);
    for (int output = MERGED_OUT; output <= MERGED_LSE; ++output)
        for (int input = 0; input < TENSORS; ++input) {
            if (input == output)
                continue;
            tensor_of(&f, output)->data = f.memory[input];
            if (input < MERGED_OUT && is_lse(input) == is_lse(output)) {
                assert_ok(merge(&f));
                /* Overlaps by one row, or has other strides. */
                restore_tensors(&f);
                annulus_tensor *const t = tensor_of(&f, output);
                t->data = (float *)(void *)f.memory[input] + t->stride[1];
                assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[input]);
                t->data = f.memory[input];
                t->stride[0] += t->stride[1];
                assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[input]);
            } else {
                assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, names[output]);
            }
            restore_tensors(&f);
        }
    annulus_context_destroy(f.context);
}

static void no_rows(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    restore_tensors(&f);
    for (int i = 0; i < TENSORS; ++i) {
        tensor_of(&f, i)->shape[is_lse(i) ? 2 : 1] = 0;
        tensor_of(&f, i)->data = NULL;
    }
    assert_ok(merge(&f));
    f.lses[1].shape[2] = 1;
    assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, "lses[1]");
    annulus_context_destroy(f.context);
}

/* A rank merges its rows alone: it waits for no other rank and tells none of an error. */
static void alone_with_a_communicator(void **state) {
    (void)state;
    merge_fixture f = make_fixture();
    annulus_comm *comms[2];
    assert_ok(annulus_comm_create_local(comms, 2, NULL));
    assert_ok(annulus_context_set_comm(f.context, comms[1]));
    restore_tensors(&f);
    assert_ok(merge(&f));
    f.out.data = NULL;
    assert_merge_refused(&f, ANNULUS_ERROR_ARGUMENT, "out");
    annulus_engine engine = ANNULUS_ENGINE_GEMM;
    assert_ok(annulus_context_last_engine(f.context, &engine));
    assert_int_equal(engine, ANNULUS_ENGINE_AUTO);
    annulus_context_destroy(f.context);
    annulus_comm_destroy(comms[0]);
    annulus_comm_destroy(comms[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointers_and_count),
        cmocka_unit_test(tensors),
        cmocka_unit_test(head_dimension),
        cmocka_unit_test(output_elements_are_distinct),
        cmocka_unit_test(overlap),
        cmocka_unit_test(no_rows),
        cmocka_unit_test(alone_with_a_communicator),
        cmocka_unit_test(merge_options),
    };
    return RUN_TESTS(tests);
}
