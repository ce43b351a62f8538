/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled against an installed libannulus. Queries of zeros give all their keys the same weight. Under a causal mask
 * row n of O is then the mean of V's rows 0 … n, and LSE is log(n + 1).
 */
#include <annulus/annulus.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 100, HEAD_DIM = 8 };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

static annulus_tensor rows(float (*data)[HEAD_DIM]) {
    annulus_tensor t = {data, ANNULUS_FLOAT32, 4, {1, TOKENS, 1, HEAD_DIM}, {TOKENS * HEAD_DIM, HEAD_DIM, HEAD_DIM, 1}};
    return t;
}

int main(void) {
    static float zeros[TOKENS][HEAD_DIM], v_data[TOKENS][HEAD_DIM], out_data[TOKENS][HEAD_DIM], lse_data[TOKENS];
    for (int n = 0; n < TOKENS; ++n)
        for (int d = 0; d < HEAD_DIM; ++d)
            v_data[n][d] = (float)(n + d);
    annulus_tensor q = rows(zeros), k = rows(zeros), v = rows(v_data), out = rows(out_data);
    annulus_tensor lse = {lse_data, ANNULUS_FLOAT32, 3, {1, 1, TOKENS}, {TOKENS, TOKENS, 1}};

    annulus_config *config;
    check(annulus_config_create(&config));
    const annulus_branch whole = ANNULUS_BRANCH_INIT(0, 1);
    check(annulus_config_add_branch(config, &whole, NULL));
    check(annulus_config_set_causal(config, 1));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));
    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
    annulus_context_destroy(context);
    annulus_config_destroy(config);

    double worst = 0;
    for (int n = 0; n < TOKENS; ++n) {
        worst = fmax(worst, fabs(lse_data[n] - log(n + 1)));
        for (int d = 0; d < HEAD_DIM; ++d)
            worst = fmax(worst, fabs(out_data[n][d] - (n / 2. + d)));
    }
    printf("libannulus %s, largest error %.1e\n", annulus_version_string(), worst);
    return worst < 1e-4 && annulus_version() == ANNULUS_VERSION ? 0 : 1;
}
