/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const argument_names[ARGUMENTS] = {"q",     "k",   "v",   "out", "lse", "d_out",
                                               "d_lse", "d_q", "d_k", "d_v", "mass"};

enum { SLOT = BATCH * LENGTH * HEADS * DIM }; /* elements of the largest tensor */
static const int pattern = 0xA5;

static annulus_status run_forward(const fixture *f) {
    return annulus_forward(f->context, f->arguments[Q], f->arguments[K], f->arguments[V], f->arguments[OUT],
                           f->arguments[LSE], f->options);
}

static annulus_status run_backward(const fixture *f) {
    return annulus_backward(f->context, f->arguments[Q], f->arguments[K], f->arguments[V], f->arguments[OUT],
                            f->arguments[LSE], f->arguments[D_OUT], f->arguments[D_LSE], f->arguments[D_Q],
                            f->arguments[D_K], f->arguments[D_V], f->options);
}

static annulus_status run_mass(const fixture *f) {
    return annulus_attention_mass(f->context, f->arguments[Q], f->arguments[K], f->arguments[LSE], f->arguments[MASS],
                                  f->options);
}

const call forward_call = {"forward", run_forward, ANNULUS_PASS_FORWARD, {Q, K, V, OUT, LSE}, 5, {OUT, LSE}, 2};
const call backward_call = {"backward",
                            run_backward,
                            ANNULUS_PASS_BACKWARD,
                            {Q, K, V, OUT, LSE, D_OUT, D_LSE, D_Q, D_K, D_V},
                            10,
                            {D_Q, D_K, D_V},
                            3};
const call mass_call = {"mass", run_mass, ANNULUS_PASS_MASS, {Q, K, LSE, MASS}, 4, {MASS}, 1};
const call *const all_calls[CALLS] = {&forward_call, &backward_call, &mass_call};

void restore(fixture *f) {
    for (int i = 0; i < ARGUMENTS; ++i) {
        annulus_tensor *t = &f->tensors[i];
        memset(t, 0, sizeof *t);
        t->data = f->memory + i * SLOT;
        t->dtype = ANNULUS_FLOAT32;
        if (i == LSE || i == D_LSE || i == MASS) {
            t->ndim = 3;
            t->shape[0] = BATCH;
            t->shape[1] = HEADS;
            t->shape[2] = LENGTH;
        } else {
            t->ndim = 4;
            t->shape[0] = BATCH;
            t->shape[1] = LENGTH;
            t->shape[2] = i == K || i == V || i == D_K || i == D_V ? KV_HEADS : HEADS;
            t->shape[3] = DIM;
        }
        int64_t stride = 1;
        for (int d = t->ndim - 1; d >= 0; --d) {
            t->stride[d] = stride;
            stride *= t->shape[d];
        }
        f->arguments[i] = t;
    }
    f->options = NULL;
}

void assert_branch_count(const annulus_config *config, int32_t wanted) {
    int32_t count = -1;
    assert_ok(annulus_config_branch_count(config, &count));
    assert_int_equal(count, wanted);
}

void add_branch(annulus_config *config, int64_t segment_length, int64_t dilation) {
    const annulus_branch branch = ANNULUS_BRANCH_INIT(segment_length, dilation);
    assert_ok(annulus_config_add_branch(config, &branch, NULL));
}

int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->memory = calloc((size_t)ARGUMENTS * SLOT, sizeof(float));
    assert_non_null(f->memory);
    restore(f);
    unsigned random = 12345;
    for (int i = 0; i < ARGUMENTS * SLOT; ++i) {
        random = random * 1664525u + 1013904223u;
        f->memory[i] = (float)(random >> 16) / 32768.0f - 1.0f;
    }
    assert_ok(annulus_config_create(&f->config));
    add_branch(f->config, 6, 1);
    add_branch(f->config, 12, 2);
    assert_ok(annulus_context_create(&f->context, ANNULUS_DEVICE_CPU, 0));
    assert_ok(annulus_context_set_config(f->context, f->config));
    assert_ok(annulus_context_set_threads(f->context, 2));
    assert_ok(run_forward(f));
    mark_outputs(f, &backward_call);
    mark_outputs(f, &mass_call);
    *state = f;
    return 0;
}

int teardown(void **state) {
    fixture *f = *state;
    annulus_context_destroy(f->context);
    annulus_config_destroy(f->config);
    free(f->memory);
    free(f);
    return 0;
}

void mark_outputs(fixture *f, const call *c) {
    for (int i = 0; i < c->output_count; ++i)
        memset(f->memory + c->outputs[i] * SLOT, pattern, SLOT * sizeof(float));
}

void assert_outputs_untouched(const fixture *f, const call *c, const char *what) {
    for (int i = 0; i < c->output_count; ++i) {
        const unsigned char *bytes = (const unsigned char *)(f->memory + c->outputs[i] * SLOT);
        for (size_t b = 0; b < SLOT * sizeof(float); ++b)
            if (bytes[b] != pattern)
                fail_msg("%s: %s: %s was written", c->name, what, argument_names[c->outputs[i]]);
    }
}

static int is_word_character(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static int mentions(const char *message, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = strstr(message, word); at; at = strstr(at + 1, word))
        if ((at == message || !is_word_character(at[-1])) && !is_word_character(at[length]))
            return 1;
    return 0;
}

/* Returns what is wrong with the status and its message, or NULL. */
static const char *complaint(annulus_status status, annulus_status wanted, const char *name) {
    const char *message = annulus_last_error();
    if (status != wanted)
        return annulus_status_name(status);
    if (message[0] == '\0' || strchr(message, '\n') || strlen(message) > 511)
        return "the message is not one line";
    if (name && !mentions(message, name))
        return "the message does not name the argument";
    return NULL;
}

void assert_refused(annulus_status status, annulus_status wanted, const char *name) {
    const char *wrong = complaint(status, wanted, name);
    if (wrong)
        fail_msg("wanted '%s' about %s, got: %s (\"%s\")", annulus_status_name(wanted), name ? name : "anything", wrong,
                 annulus_last_error());
}

void assert_call_refused(fixture *f, const call *c, annulus_status wanted, const char *name, const char *what) {
    mark_outputs(f, c);
    const annulus_status status = c->run(f);
    const char *wrong = complaint(status, wanted, name);
    if (wrong)
        fail_msg("%s: %s: wanted '%s' about %s, got: %s (\"%s\")", c->name, what, annulus_status_name(wanted),
                 name ? name : "anything", wrong, annulus_last_error());
    assert_outputs_untouched(f, c, what);
}

void assert_ok(annulus_status status) {
    if (status != ANNULUS_OK)
        fail_msg("%s: %s", annulus_status_name(status), annulus_last_error());
}

void set_field(void *object, const bad_field *field) {
    const int32_t narrow = (int32_t)field->value;
    memcpy((char *)object + field->offset, field->bytes == 8 ? (const void *)&field->value : (const void *)&narrow,
           field->bytes);
}

annulus_status assert_sized(sized_function function, void *context, void *given, size_t bytes, size_t first_bytes,
                            const char *name) {
    enum { UNKNOWN = 8, SIZES = 5 };
    union {
        int64_t alignment;
        unsigned char bytes[512];
    } longer, before;
    const size_t sizes[SIZES] = {0, sizeof(size_t), first_bytes - 1, 4097, SIZE_MAX};
    char size_of_name[64];
    assert_true(bytes + UNKNOWN <= sizeof longer);
    snprintf(size_of_name, sizeof size_of_name, "size of %s", name);
    for (size_t i = 0; i <= SIZES + UNKNOWN; ++i) {
        const size_t size = i < SIZES ? sizes[i] : bytes + UNKNOWN;
        memset(&longer, 0, sizeof longer);
        memcpy(&longer, given, bytes);
        memcpy(&longer, &size, sizeof size);
        if (i == SIZES + UNKNOWN)
            break;
        if (i >= SIZES)
            longer.bytes[bytes + i - SIZES] = 1;
        before = longer;
        assert_refused(function(context, &longer), ANNULUS_ERROR_ARGUMENT, i < SIZES ? size_of_name : name);
        assert_memory_equal(&longer, &before, sizeof longer);
    }
    const annulus_status status = function(context, &longer);
    assert_memory_equal(&longer, &before, sizeof(size_t)); /* the caller's size */
    memcpy((char *)given + sizeof bytes, longer.bytes + sizeof bytes, bytes - sizeof bytes);
    return status;
}

void assert_same_estimates(const annulus_estimate *a, const annulus_estimate *b) {
    assert_memory_equal(a, b, offsetof(annulus_estimate, exchange) + sizeof a->exchange);
}

annulus_problem fixture_problem(void) {
    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = ANNULUS_FLOAT32;
    problem.heads = HEADS;
    problem.kv_heads = KV_HEADS;
    problem.head_dim = DIM;
    problem.batch = BATCH;
    problem.sequence_length = LENGTH;
    return problem;
}
