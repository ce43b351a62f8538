/* SPDX-License-Identifier: Apache-2.0 */
/* What a problem would cost, without its data: a billion tokens under LongNet's geometric series of branches. */
#include <annulus/annulus.h>
#include <stdio.h>
#include <stdlib.h>

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

int main(void) {
    /* w = 2048, 8192, 32768, … and r = 1, 4, 16, …: six branches. */
    annulus_config *config;
    check(annulus_config_create(&config));
    check(annulus_config_add_longnet(config, 2048, 4, 4, 6));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));

    annulus_problem problem = ANNULUS_PROBLEM_INIT;
    problem.dtype = ANNULUS_BFLOAT16;
    problem.batch = 1;
    problem.heads = 16;
    problem.kv_heads = 16;
    problem.head_dim = 128;
    problem.sequence_length = 1000000000;

    annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
    check(annulus_estimate_problem(context, &problem, ANNULUS_PASS_FORWARD, ANNULUS_ALL_BRANCHES, &estimate));
    const double dense_pairs = 16.0 * 1e9 * 1e9;
    printf("forward: %.3g FLOP, one part in %.0f of dense attention\n", estimate.flops, dense_pairs / estimate.pairs);
    printf("tensors: %.3g GB, workspace: %.3g MB, plan: %.3g KB\n", (double)estimate.tensor_bytes / 1e9,
           (double)estimate.workspace_bytes / 1e6, (double)estimate.plan_bytes / 1e3);

    int32_t branches;
    check(annulus_config_branch_count(config, &branches));
    for (int32_t branch = 0; branch < branches; ++branch) {
        annulus_estimate part = ANNULUS_ESTIMATE_INIT;
        check(annulus_estimate_problem(context, &problem, ANNULUS_PASS_FORWARD, branch, &part));
        printf("branch %d: %4.1f %% of the work\n", branch, 100 * part.flops / estimate.flops);
    }

    annulus_context_destroy(context);
    annulus_config_destroy(config);
    return estimate.pairs > 0 && estimate.pairs < dense_pairs / 1000 ? 0 : 1;
}
