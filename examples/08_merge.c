/* SPDX-License-Identifier: Apache-2.0 */
/* Queries that attend to two sets of keys, their own sequence (causal) and another one (all of it), in one softmax: two
   calls and a merge. The gradients come from two calls as well, with the merged results; a difference quotient checks
   them. */
#include <annulus/annulus.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 300, HEADS = 4, HEAD_DIM = 16, COUNT = TOKENS * HEADS * HEAD_DIM, SETS = 2 };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

static annulus_tensor rows(double *data) {
    const annulus_tensor t = {
        data, ANNULUS_FLOAT64, 4, {1, TOKENS, HEADS, HEAD_DIM}, {COUNT, HEADS * HEAD_DIM, HEAD_DIM, 1}};
    return t;
}

static annulus_tensor numbers(double *data) {
    const annulus_tensor t = {data, ANNULUS_FLOAT64, 3, {1, HEADS, TOKENS}, {HEADS * TOKENS, TOKENS, 1}};
    return t;
}

static annulus_context *make_context(int64_t segment_length, int64_t dilation, int causal) {
    annulus_config *config;
    annulus_context *context;
    annulus_branch branch = ANNULUS_BRANCH_INIT(segment_length, dilation);
    branch.query_rule = ANNULUS_QUERY_RESIDUE;
    check(annulus_config_create(&config));
    check(annulus_config_add_branch(config, &branch, NULL));
    check(annulus_config_set_causal(config, causal));
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));
    annulus_config_destroy(config);
    return context;
}

static annulus_context *contexts[SETS];
static double q[COUNT], k[SETS][COUNT], v[SETS][COUNT], d_out[COUNT]; /* inputs */
static double out[COUNT], lse[HEADS * TOKENS];                        /* merged */

/* Computes the merged O and LSE. Returns O . dO. */
static double forward(void) {
    static double part_out[SETS][COUNT], part_lse[SETS][HEADS * TOKENS];
    annulus_tensor outs[SETS], lses[SETS];
    const annulus_tensor queries = rows(q), merged_out = rows(out), merged_lse = numbers(lse);
    for (int i = 0; i < SETS; ++i) {
        const annulus_tensor keys = rows(k[i]), values = rows(v[i]);
        outs[i] = rows(part_out[i]);
        lses[i] = numbers(part_lse[i]);
        check(annulus_forward(contexts[i], &queries, &keys, &values, &outs[i], &lses[i], NULL));
    }
    check(annulus_merge(contexts[0], SETS, outs, lses, &merged_out, &merged_lse, NULL));
    double sum = 0;
    for (int i = 0; i < COUNT; ++i)
        sum += out[i] * d_out[i];
    return sum;
}

/* Returns the derivative of O . dO with respect to x[i]. */
static double quotient(double *x, int i) {
    const double before = x[i], step = 1e-5;
    x[i] = before + step;
    const double above = forward();
    x[i] = before - step;
    const double below = forward();
    x[i] = before;
    return (above - below) / (2 * step);
}

static double random_number(void) {
    return 2 * (double)rand() / (double)RAND_MAX - 1;
}

int main(void) {
    static double d_q[SETS][COUNT], d_k[SETS][COUNT], d_v[SETS][COUNT];
    for (int i = 0; i < COUNT; ++i) {
        q[i] = random_number();
        d_out[i] = random_number();
        for (int set = 0; set < SETS; ++set) {
            k[set][i] = random_number();
            v[set][i] = random_number();
        }
    }
    contexts[0] = make_context(64, 1, 1);
    contexts[1] = make_context(0, 3, 0);
    forward();

    /* Each set's backward call takes the merged O and LSE. Its d_k and d_v are complete, its d_q is a summand. */
    const annulus_tensor queries = rows(q), merged_out = rows(out), merged_lse = numbers(lse), d_merged = rows(d_out);
    for (int i = 0; i < SETS; ++i) {
        const annulus_tensor keys = rows(k[i]), values = rows(v[i]);
        const annulus_tensor part_d_q = rows(d_q[i]), part_d_k = rows(d_k[i]), part_d_v = rows(d_v[i]);
        check(annulus_backward(contexts[i], &queries, &keys, &values, &merged_out, &merged_lse, &d_merged, NULL,
                               &part_d_q, &part_d_k, &part_d_v, NULL));
    }
    for (int i = 0; i < COUNT; ++i)
        d_q[0][i] += d_q[1][i];

    double worst = 0;
    for (int i = 7; i < COUNT; i += 1999) {
        worst = fmax(worst, fabs(quotient(q, i) - d_q[0][i]));
        for (int set = 0; set < SETS; ++set) {
            worst = fmax(worst, fabs(quotient(k[set], i) - d_k[set][i]));
            worst = fmax(worst, fabs(quotient(v[set], i) - d_v[set][i]));
        }
    }
    printf("largest difference from difference quotients: %.1e\n", worst);
    for (int i = 0; i < SETS; ++i)
        annulus_context_destroy(contexts[i]);
    return worst < 1e-7 ? 0 : 1;
}
