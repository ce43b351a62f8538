/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The small job that every language's example does (bindings/.../small_job.*). All print the same lines.
 *
 * float32 arrays q, k, v and d_out, each [1, 64, 4, 16], are filled one after the other in row-major order from one
 * generator: state = state * 1664525 + 1013904223 mod 2^32, beginning with state 1; the number is
 * (state >> 8) / 2^23 - 1, exactly. Branches 16:1 and 64:4, causal. Sums are taken in float64.
 */
#include <annulus/annulus.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 64, H = 4, D = 16, COUNT = N * H * D };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

static uint32_t state = 1;

static void fill(float *numbers) {
    for (int i = 0; i < COUNT; ++i) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (float)(state >> 8) / 8388608 - 1;
    }
}

static annulus_tensor rows(float *data) {
    return (annulus_tensor){data, ANNULUS_FLOAT32, 4, {1, N, H, D}, {COUNT, H * D, D, 1}};
}

static double sum(const float *a, int count) {
    double total = 0;
    for (int i = 0; i < count; ++i)
        total += (double)a[i];
    return total;
}

static double dot(const float *a, const float *b) {
    double total = 0;
    for (int i = 0; i < COUNT; ++i)
        total += (double)a[i] * (double)b[i];
    return total;
}

int main(void) {
    static float q[COUNT], k[COUNT], v[COUNT], d_out[COUNT];
    static float out[COUNT], lse[H * N], d_q[COUNT], d_k[COUNT], d_v[COUNT];
    fill(q);
    fill(k);
    fill(v);
    fill(d_out);
    const annulus_tensor q_rows = rows(q), k_rows = rows(k), v_rows = rows(v), out_rows = rows(out);
    const annulus_tensor d_out_rows = rows(d_out), d_q_rows = rows(d_q), d_k_rows = rows(d_k), d_v_rows = rows(d_v);
    const annulus_tensor lse_rows = {lse, ANNULUS_FLOAT32, 3, {1, H, N}, {H * N, N, 1}};

    annulus_config *config;
    check(annulus_config_create(&config));
    const annulus_branch near = ANNULUS_BRANCH_INIT(16, 1), far = ANNULUS_BRANCH_INIT(64, 4);
    check(annulus_config_add_branch(config, &near, NULL));
    check(annulus_config_add_branch(config, &far, NULL));
    check(annulus_config_set_causal(config, 1));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));
    check(annulus_forward(context, &q_rows, &k_rows, &v_rows, &out_rows, &lse_rows, NULL));
    check(annulus_backward(context, &q_rows, &k_rows, &v_rows, &out_rows, &lse_rows, &d_out_rows, NULL, &d_q_rows,
                           &d_k_rows, &d_v_rows, NULL));
    annulus_context_destroy(context);
    annulus_config_destroy(config);

    printf("sum(out) = %.6f\n", sum(out, COUNT));
    printf("sum(lse) = %.6f\n", sum(lse, H * N));
    printf("out[0..3] = %.6f %.6f %.6f %.6f\n", out[0], out[1], out[2], out[3]);
    printf("sum(q * dq) = %.6f\n", dot(q, d_q));
    printf("sum(k * dk) = %.6f\n", dot(k, d_k));
    return 0;
}
