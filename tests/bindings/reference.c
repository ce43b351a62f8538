/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference DTYPE FILE: computes one problem by the C API and writes its arrays, for tests that compare a binding's
 * results bit for bit. DTYPE: 1 to 4, an annulus_dtype.
 *
 * B = 2, N = 65, H = 4, G = 2, D = 16. Branches: 16:1; 64:4, phases interleaved, heads 1 to 3; 0:3, query rule residue.
 * Causal, scale 0.3. FILE: q, k, v, d_out, d_lse, out, lse, d_q, d_k, d_v one behind the other, row-major; then out
 * again, of the query rows 40 to 64 alone; then the keys' attention mass.
 */
#include <annulus/annulus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, N = 65, H = 4, G = 2, D = 16, WINDOW_START = 40 };

static FILE *file;

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

/* Stores a multiple of 1/128 in [-1, 1), which every dtype holds exactly. */
static void store(void *data, annulus_dtype type, size_t index, float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000;
    if (type == ANNULUS_FLOAT64)
        ((double *)data)[index] = (double)number;
    else if (type == ANNULUS_FLOAT32)
        ((float *)data)[index] = number;
    else if (type == ANNULUS_BFLOAT16)
        ((uint16_t *)data)[index] = (uint16_t)(bits >> 16);
    else
        ((uint16_t *)data)[index] = (uint16_t)(number == 0 ? sign : sign | ((bits & 0x7fffffff) - (112u << 23)) >> 13);
}

static size_t bytes_of(const annulus_tensor *t) {
    size_t bytes = (size_t)annulus_dtype_bits(t->dtype) / 8;
    for (int i = 0; i < t->ndim; ++i)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

/* A row-major tensor. An input has numbers of a generator, an output has zeros. */
static annulus_tensor make(annulus_dtype type, int32_t ndim, const int64_t *shape, int is_input) {
    static uint32_t state = 1;
    annulus_tensor t = {0};
    t.dtype = type;
    t.ndim = ndim;
    int64_t count = 1;
    for (int i = ndim - 1; i >= 0; --i) {
        t.shape[i] = shape[i];
        t.stride[i] = count;
        count *= shape[i];
    }
    t.data = calloc(1, bytes_of(&t));
    if (!t.data)
        exit(1);
    for (int64_t i = 0; is_input && i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        store(t.data, type, (size_t)i, ((float)(state >> 24) - 128) / 128);
    }
    return t;
}

static void write_and_free(const annulus_tensor *tensors, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        if (fwrite(tensors[i].data, 1, bytes_of(&tensors[i]), file) != bytes_of(&tensors[i]))
            exit(1);
        free(tensors[i].data);
    }
}

static annulus_config *make_config(void) {
    annulus_config *config;
    const annulus_branch first = ANNULUS_BRANCH_INIT(16, 1);
    annulus_branch second = ANNULUS_BRANCH_INIT(64, 4), third = ANNULUS_BRANCH_INIT(0, 3);
    annulus_branch window = ANNULUS_BRANCH_WINDOW_INIT(5, 2, 3), tokens = ANNULUS_BRANCH_GLOBAL_INIT(7, 2);
    second.phase_rule = ANNULUS_PHASE_INTERLEAVE;
    second.first_head = 1;
    second.head_count = 3;
    third.query_rule = ANNULUS_QUERY_RESIDUE;
    window.first_head = 1;
    tokens.global_queries = 1;
    check(annulus_config_create(&config));
    check(annulus_config_add_branch(config, &first, NULL));
    check(annulus_config_add_branch(config, &second, NULL));
    check(annulus_config_add_branch(config, &third, NULL));
    check(annulus_config_add_branch(config, &window, NULL));
    check(annulus_config_add_branch(config, &tokens, NULL));
    check(annulus_config_set_causal(config, 1));
    check(annulus_config_set_scale(config, 0.3));
    return config;
}

int main(int count, char **arguments) {
    if (count != 3 || !(file = fopen(arguments[2], "wb"))) {
        fprintf(stderr, "usage: reference DTYPE FILE\n");
        return 2;
    }
    const annulus_dtype dtype = (annulus_dtype)atoi(arguments[1]);
    const annulus_dtype lse_dtype = dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32;
    const int64_t query[] = {B, N, H, D}, key[] = {B, N, G, D}, statistics[] = {B, H, N};
    const int64_t window_query[] = {B, N - WINDOW_START, H, D};

    annulus_tensor q = make(dtype, 4, query, 1), k = make(dtype, 4, key, 1), v = make(dtype, 4, key, 1);
    annulus_tensor d_out = make(dtype, 4, query, 1), d_lse = make(lse_dtype, 3, statistics, 1);
    annulus_tensor out = make(dtype, 4, query, 0), lse = make(lse_dtype, 3, statistics, 0);
    annulus_tensor d_q = make(dtype, 4, query, 0), d_k = make(dtype, 4, key, 0), d_v = make(dtype, 4, key, 0);
    annulus_tensor window_out = make(dtype, 4, window_query, 0), window_q = q;
    annulus_tensor mass = make(lse_dtype, 3, statistics, 0);
    window_q.data = (char *)q.data + WINDOW_START * q.stride[1] * annulus_dtype_bits(dtype) / 8;
    window_q.shape[1] = N - WINDOW_START;
    annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
    options.flags = ANNULUS_CALL_QUERY_WINDOW;
    options.query_start = WINDOW_START;

    annulus_config *config = make_config();
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));
    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
    check(annulus_backward(context, &q, &k, &v, &out, &lse, &d_out, &d_lse, &d_q, &d_k, &d_v, NULL));
    check(annulus_forward(context, &window_q, &k, &v, &window_out, NULL, &options));
    check(annulus_attention_mass(context, &q, &k, &lse, &mass, NULL));
    annulus_context_destroy(context);
    annulus_config_destroy(config);

    const annulus_tensor tensors[] = {q, k, v, d_out, d_lse, out, lse, d_q, d_k, d_v, window_out, mass};
    write_and_free(tensors, sizeof tensors / sizeof *tensors);
    return fclose(file) == 0 ? 0 : 1;
}
