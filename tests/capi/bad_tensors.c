/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes every field of every tensor argument wrong, one at a time, in forward, backward and mass. The call refuses,
 * names the argument and writes nothing.
 */
#include "fixture.h"

#include <stdio.h>

/* q (and k, for N and G) determine the other tensors. If q or k differs, the message may name another tensor. */
static const char *name_of(enum argument argument) {
    return argument == Q || argument == K ? NULL : argument_names[argument];
}

static int is_statistic(enum argument argument) {
    return argument == LSE || argument == D_LSE || argument == MASS;
}

static void required_tensors(void **state) {
    fixture *f = *state;
    for (int c = 0; c < CALLS; ++c)
        for (int i = 0; i < all_calls[c]->count; ++i) {
            const enum argument argument = all_calls[c]->arguments[i];
            f->arguments[argument] = NULL;
            if ((all_calls[c] == &forward_call && argument == LSE) || argument == D_LSE)
                assert_ok(all_calls[c]->run(f));
            else
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, argument_names[argument], "NULL");
            restore(f);
        }
}

/* Fields with wrong values. `is_last`: the field of the last dimension instead. */
static const struct wrong_field {
    const char *name;
    size_t offset, bytes;
    int is_last, count;
    int64_t values[7];
} wrong_fields[] = {
    {"data", FIELD(annulus_tensor, data), 0, 1, {0}},
    {"dtype",
     FIELD(annulus_tensor, dtype),
     0,
     7,
     {0, 5, -1, 1 << 30, ANNULUS_FLOAT64, ANNULUS_BFLOAT16, ANNULUS_FLOAT16}},
    {"ndim", FIELD(annulus_tensor, ndim), 0, 7, {0, -1, 1, 2, 5, INT32_MAX, INT32_MIN}},
    {"shape[0]", FIELD(annulus_tensor, shape[0]), 0, 5, {0, -1, INT64_MIN, INT64_MAX, BATCH - 1}},
    {"shape[1]", FIELD(annulus_tensor, shape[1]), 0, 5, {0, -1, INT64_MIN, INT64_MAX, LENGTH - 1}},
    {"shape[2]", FIELD(annulus_tensor, shape[2]), 0, 5, {0, -1, INT64_MIN, INT64_MAX, 3}},
    {"the last shape", FIELD(annulus_tensor, shape[0]), 1, 3, {0, -8, 2 * DIM}},
    {"stride[0]", FIELD(annulus_tensor, stride[0]), 0, 4, {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2}},
    {"stride[1]", FIELD(annulus_tensor, stride[1]), 0, 4, {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2}},
    {"stride[2]", FIELD(annulus_tensor, stride[2]), 0, 4, {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2}},
    {"the last stride", FIELD(annulus_tensor, stride[0]), 1, 4, {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2}},
};

static void refuse_field(fixture *f, const call *c, enum argument argument, const struct wrong_field *wrong) {
    for (int i = 0; i < wrong->count; ++i) {
        annulus_tensor *const t = &f->tensors[argument];
        const size_t last = wrong->is_last ? (size_t)(t->ndim - 1) * wrong->bytes : 0;
        const bad_field field = {NULL, wrong->offset + last, wrong->bytes, wrong->values[i]};
        char text[100];
        snprintf(text, sizeof text, "%s of %s set to %lld", wrong->name, argument_names[argument],
                 (long long)wrong->values[i]);
        set_field(t, &field);
        assert_call_refused(f, c, ANNULUS_ERROR_ARGUMENT, name_of(argument), text);
        restore(f);
    }
}

static void fields(void **state) {
    for (int c = 0; c < CALLS; ++c)
        for (int i = 0; i < all_calls[c]->count; ++i)
            for (size_t w = 0; w < sizeof wrong_fields / sizeof *wrong_fields; ++w)
                refuse_field(*state, all_calls[c], all_calls[c]->arguments[i], &wrong_fields[w]);
}

static void alignment_of_data(void **state) {
    fixture *f = *state;
    for (int c = 0; c < CALLS; ++c)
        for (int i = 0; i < all_calls[c]->count; ++i)
            for (int bytes = 1; bytes < 4; ++bytes) {
                const enum argument argument = all_calls[c]->arguments[i];
                f->tensors[argument].data = (char *)f->tensors[argument].data + bytes;
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, name_of(argument), "alignment of data");
                restore(f);
            }
}

static void stride_of_rows_is_one_in_the_last_dimension(void **state) {
    fixture *f = *state;
    for (int c = 0; c < CALLS; ++c)
        for (int i = 0; i < all_calls[c]->count; ++i) {
            const enum argument argument = all_calls[c]->arguments[i];
            if (is_statistic(argument))
                continue;
            for (int64_t value = 0; value < 3; value += 2) {
                f->tensors[argument].stride[3] = value;
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, argument_names[argument], "stride[3]");
                restore(f);
            }
        }
}

/* All tensors have a head dimension that annulus does not support. */
static void head_dimension(void **state) {
    fixture *f = *state;
    const int64_t dims[] = {1, 4, 12, 260, 264, 1 << 20};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; ++d)
        for (int c = 0; c < CALLS; ++c) {
            for (int i = 0; i < ARGUMENTS; ++i)
                if (!is_statistic((enum argument)i))
                    f->tensors[i].shape[3] = dims[d];
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_UNSUPPORTED, NULL, "head dimension");
            restore(f);
        }
}

static void kv_heads_divide_heads(void **state) {
    fixture *f = *state;
    for (int64_t kv_heads = 3; kv_heads < 9; kv_heads += 5)
        for (int c = 0; c < CALLS; ++c) {
            f->tensors[K].shape[2] = f->tensors[V].shape[2] = kv_heads;
            f->tensors[D_K].shape[2] = f->tensors[D_V].shape[2] = kv_heads;
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, "k", "kv heads");
            restore(f);
        }
}

/* Consistent sizes whose product overflows. Repeated rows make them legal only for inputs. */
static void sizes_overflow(void **state) {
    fixture *f = *state;
    const int64_t huge[] = {INT64_MAX, INT64_MAX / 2, (int64_t)1 << 60, (int64_t)1 << 40};
    for (size_t s = 0; s < sizeof huge / sizeof *huge; ++s)
        for (int c = 0; c < CALLS; ++c) {
            for (int i = 0; i < ARGUMENTS; ++i) {
                f->tensors[i].shape[0] = huge[s];
                f->tensors[i].stride[0] = (int64_t)1 << 40;
                if (i == Q || i == K || i == V)
                    f->tensors[i].stride[0] = 0;
            }
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, NULL, "huge batch");
            restore(f);
        }
}

static void output_elements_are_distinct(void **state) {
    fixture *f = *state;
    for (int c = 0; c < CALLS; ++c)
        for (int i = 0; i < all_calls[c]->output_count; ++i) {
            const enum argument output = all_calls[c]->outputs[i];
            for (int d = 0; d < (is_statistic(output) ? 3 : 2); ++d) {
                f->tensors[output].stride[d] = 0;
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, argument_names[output], "stride 0");
                restore(f);
            }
            if (!is_statistic(output)) {
                f->tensors[output].stride[2] = DIM - 1;
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, argument_names[output], "rows overlap");
                restore(f);
            }
        }
}

static void outputs_overlap_nothing(void **state) {
    fixture *f = *state;
    for (int c = 0; c < CALLS; ++c)
        for (int o = 0; o < all_calls[c]->output_count; ++o)
            for (int i = 0; i < all_calls[c]->count; ++i) {
                const enum argument output = all_calls[c]->outputs[o];
                const enum argument other = all_calls[c]->arguments[i];
                if (output == other)
                    continue;
                char text[100];
                snprintf(text, sizeof text, "%s on %s", argument_names[other], argument_names[output]);
                f->tensors[other].data = f->tensors[output].data;
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, argument_names[output], text);
                restore(f);
                /* The same with a partial overlap. */
                f->tensors[other].data = (float *)f->tensors[output].data + LENGTH;
                assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, argument_names[output], text);
                restore(f);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(required_tensors),        TEST(fields),
        TEST(alignment_of_data),       TEST(stride_of_rows_is_one_in_the_last_dimension),
        TEST(head_dimension),          TEST(kv_heads_divide_heads),
        TEST(sizes_overflow),          TEST(output_elements_are_distinct),
        TEST(outputs_overlap_nothing),
    };
    return RUN_TESTS(tests);
}
