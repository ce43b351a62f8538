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

/* Runs `spoil` on each tensor of all passes, then the call. */
static void for_each_tensor(fixture *f, void (*spoil)(annulus_tensor *t, int64_t value), int64_t value,
                            const char *what) {
    for (int c = 0; c < CALLS; ++c)
        for (int i = 0; i < all_calls[c]->count; ++i) {
            const enum argument argument = all_calls[c]->arguments[i];
            char text[100];
            snprintf(text, sizeof text, "%s of %s set to %lld", what, argument_names[argument], (long long)value);
            spoil(&f->tensors[argument], value);
            assert_call_refused(f, all_calls[c], ANNULUS_ERROR_ARGUMENT, name_of(argument), text);
            restore(f);
        }
}

static void set_data(annulus_tensor *t, int64_t value) {
    t->data = (void *)(intptr_t)value;
}
static void move_data(annulus_tensor *t, int64_t bytes) {
    t->data = (char *)t->data + bytes;
}
static void set_dtype(annulus_tensor *t, int64_t value) {
    t->dtype = (annulus_dtype)value;
}
static void set_ndim(annulus_tensor *t, int64_t value) {
    t->ndim = (int32_t)value;
}
static void set_shape0(annulus_tensor *t, int64_t value) {
    t->shape[0] = value;
}
static void set_shape1(annulus_tensor *t, int64_t value) {
    t->shape[1] = value;
}
static void set_shape2(annulus_tensor *t, int64_t value) {
    t->shape[2] = value;
}
static void set_last_shape(annulus_tensor *t, int64_t value) {
    t->shape[t->ndim - 1] = value;
}
static void set_stride0(annulus_tensor *t, int64_t value) {
    t->stride[0] = value;
}
static void set_stride1(annulus_tensor *t, int64_t value) {
    t->stride[1] = value;
}
static void set_stride2(annulus_tensor *t, int64_t value) {
    t->stride[2] = value;
}
static void set_last_stride(annulus_tensor *t, int64_t value) {
    t->stride[t->ndim - 1] = value;
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

static void data(void **state) {
    for_each_tensor(*state, set_data, 0, "data");
    for (int64_t bytes = 1; bytes < 4; ++bytes)
        for_each_tensor(*state, move_data, bytes, "alignment of data");
}

static void dtype(void **state) {
    const int64_t wrong[] = {0, 5, -1, 1 << 30, ANNULUS_FLOAT64, ANNULUS_BFLOAT16, ANNULUS_FLOAT16};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
        for_each_tensor(*state, set_dtype, wrong[i], "dtype");
}

static void ndim(void **state) {
    const int64_t wrong[] = {0, -1, 1, 2, 5, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
        for_each_tensor(*state, set_ndim, wrong[i], "ndim");
}

static void shape(void **state) {
    const int64_t wrong[] = {0, -1, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        for_each_tensor(*state, set_shape0, wrong[i], "shape[0]");
        for_each_tensor(*state, set_shape1, wrong[i], "shape[1]");
        for_each_tensor(*state, set_shape2, wrong[i], "shape[2]");
    }
    for_each_tensor(*state, set_last_shape, 0, "the last shape");
    for_each_tensor(*state, set_last_shape, -8, "the last shape");
    for_each_tensor(*state, set_shape0, BATCH - 1, "shape[0]");
    for_each_tensor(*state, set_shape1, LENGTH - 1, "shape[1]");
    for_each_tensor(*state, set_shape2, 3, "shape[2]");
    for_each_tensor(*state, set_last_shape, 2 * DIM, "the last shape");
}

static void stride(void **state) {
    const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        for_each_tensor(*state, set_stride0, wrong[i], "stride[0]");
        for_each_tensor(*state, set_stride1, wrong[i], "stride[1]");
        for_each_tensor(*state, set_stride2, wrong[i], "stride[2]");
        for_each_tensor(*state, set_last_stride, wrong[i], "the last stride");
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
        TEST(required_tensors),
        TEST(data),
        TEST(dtype),
        TEST(ndim),
        TEST(shape),
        TEST(stride),
        TEST(stride_of_rows_is_one_in_the_last_dimension),
        TEST(head_dimension),
        TEST(kv_heads_divide_heads),
        TEST(sizes_overflow),
        TEST(output_elements_are_distinct),
        TEST(outputs_overlap_nothing),
    };
    return RUN_TESTS(tests);
}
