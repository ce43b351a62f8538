/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over 10,000 tokens with three dilated branches, and its gradients. */
#include <annulus/annulus.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 10000, HEADS = 8, HEAD_DIM = 64, COUNT = TOKENS * HEADS * HEAD_DIM };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

/* A contiguous float32 tensor [1, TOKENS, HEADS, HEAD_DIM] of numbers in [-1, 1]. */
static annulus_tensor make_rows(void) {
    annulus_tensor t = {0};
    float *data = malloc(COUNT * sizeof *data);
    if (!data)
        exit(1);
    for (int i = 0; i < COUNT; ++i)
        data[i] = 2 * (float)rand() / (float)RAND_MAX - 1;
    t.data = data;
    t.dtype = ANNULUS_FLOAT32;
    t.ndim = 4;
    t.shape[0] = 1, t.shape[1] = TOKENS, t.shape[2] = HEADS, t.shape[3] = HEAD_DIM;
    t.stride[0] = COUNT, t.stride[1] = HEADS * HEAD_DIM, t.stride[2] = HEAD_DIM, t.stride[3] = 1;
    return t;
}

static double dot(const annulus_tensor *a, const annulus_tensor *b) {
    double sum = 0;
    for (int i = 0; i < COUNT; ++i)
        sum += (double)((float *)a->data)[i] * ((float *)b->data)[i];
    return sum;
}

int main(void) {
    static float lse_data[HEADS * TOKENS];
    annulus_tensor q = make_rows(), k = make_rows(), v = make_rows(), out = make_rows();
    annulus_tensor d_out = make_rows(), d_q = make_rows(), d_k = make_rows(), d_v = make_rows();
    annulus_tensor lse = {lse_data, ANNULUS_FLOAT32, 3, {1, HEADS, TOKENS}, {HEADS * TOKENS, TOKENS, 1}};

    /* What to compute: segments of 2048 with every position, 4096 with every 2nd, 8192 with every 4th; causal. */
    annulus_config *config;
    check(annulus_config_create(&config));
    const annulus_branch branches[] = {ANNULUS_BRANCH_INIT(2048, 1), ANNULUS_BRANCH_INIT(4096, 2),
                                       ANNULUS_BRANCH_INIT(8192, 4)};
    for (int i = 0; i < 3; ++i)
        check(annulus_config_add_branch(config, &branches[i], NULL));
    check(annulus_config_set_causal(config, 1));

    /* Where to compute it. */
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));

    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
    check(annulus_backward(context, &q, &k, &v, &out, &lse, &d_out, NULL, &d_q, &d_k, &d_v, NULL));

    /* Two things that must hold: in head 0 the first token sees itself alone, so its output is its value; and the
       gradients obey sum(q * dq) = sum(k * dk). */
    const float first_out = ((float *)out.data)[0], first_v = ((float *)v.data)[0];
    const double by_q = dot(&q, &d_q), by_k = dot(&k, &d_k);
    printf("out[0] = %.5f, v[0] = %.5f\n", first_out, first_v);
    printf("sum(q * dq) = %.3f, sum(k * dk) = %.3f\n", by_q, by_k);
    const int holds = fabs(first_out - first_v) < 1e-5 && fabs(by_q - by_k) < 1e-4 * sqrt(COUNT);

    annulus_context_destroy(context);
    annulus_config_destroy(config);
    annulus_tensor rows[] = {q, k, v, out, d_out, d_q, d_k, d_v};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        free(rows[i].data);
    return holds ? 0 : 1;
}
