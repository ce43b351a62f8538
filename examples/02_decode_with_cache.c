/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding: one query row at a time against a growing cache of keys and values. Eight query heads share two key/value
   heads. A query window says which position the row has. */
#include <annulus/annulus.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 3000, PROMPT = 2900, HEADS = 8, KV_HEADS = 2, HEAD_DIM = 64 };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

static void fill(float *data, size_t count) {
    for (size_t i = 0; i < count; ++i)
        data[i] = 2 * (float)rand() / (float)RAND_MAX - 1;
}

/* Rows first … first + count - 1 of a contiguous array [1, TOKENS, heads, HEAD_DIM]. */
static annulus_tensor rows(float *data, int heads, int first, int count) {
    const int row = heads * HEAD_DIM;
    const annulus_tensor t = {
        data + first * row, ANNULUS_FLOAT32, 4, {1, count, heads, HEAD_DIM}, {TOKENS * row, row, HEAD_DIM, 1}};
    return t;
}

int main(void) {
    static float q[TOKENS * HEADS * HEAD_DIM], whole[TOKENS * HEADS * HEAD_DIM], stepwise[TOKENS * HEADS * HEAD_DIM];
    static float k[TOKENS * KV_HEADS * HEAD_DIM], v[TOKENS * KV_HEADS * HEAD_DIM];
    fill(q, sizeof q / sizeof *q);
    fill(k, sizeof k / sizeof *k);
    fill(v, sizeof v / sizeof *v);

    /* With the query rule `residue` every query finds keys in the sparse branch too. */
    annulus_config *config;
    annulus_branch near = ANNULUS_BRANCH_INIT(512, 1), sparse = ANNULUS_BRANCH_INIT(0, 8);
    sparse.query_rule = ANNULUS_QUERY_RESIDUE;
    check(annulus_config_create(&config));
    check(annulus_config_add_branch(config, &near, NULL));
    check(annulus_config_add_branch(config, &sparse, NULL));
    check(annulus_config_set_causal(config, 1));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));

    for (int n = PROMPT; n < TOKENS; ++n) {
        const annulus_tensor query = rows(q, HEADS, n, 1), out = rows(stepwise, HEADS, n, 1);
        const annulus_tensor keys = rows(k, KV_HEADS, 0, n + 1), values = rows(v, KV_HEADS, 0, n + 1);
        annulus_call_options options = ANNULUS_CALL_OPTIONS_INIT;
        options.flags = ANNULUS_CALL_QUERY_WINDOW;
        options.query_start = n;
        check(annulus_forward(context, &query, &keys, &values, &out, NULL, &options));
    }

    /* Computes the same rows in one call over the whole sequence. */
    const annulus_tensor query = rows(q, HEADS, 0, TOKENS), out = rows(whole, HEADS, 0, TOKENS);
    const annulus_tensor keys = rows(k, KV_HEADS, 0, TOKENS), values = rows(v, KV_HEADS, 0, TOKENS);
    check(annulus_forward(context, &query, &keys, &values, &out, NULL, NULL));
    double worst = 0;
    for (int i = PROMPT * HEADS * HEAD_DIM; i < TOKENS * HEADS * HEAD_DIM; ++i)
        worst = fmax(worst, fabs((double)whole[i] - stepwise[i]));
    printf("%d tokens one by one; largest difference from one call over all: %.1e\n", TOKENS - PROMPT, worst);

    annulus_context_destroy(context);
    annulus_config_destroy(config);
    return worst < 1e-5 ? 0 : 1;
}
