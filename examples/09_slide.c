/* SPDX-License-Identifier: Apache-2.0 */
/* The attention of Prov-GigaPath's slide encoder over the tiles of a slide; the caller does the projections. */
#include <annulus/annulus.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TILES = 3000, POSITIONS = TILES + 1, HEADS = 16, HEAD_DIM = 48, COUNT = POSITIONS * HEADS * HEAD_DIM };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

/* Contiguous float32 rows [1, POSITIONS, HEADS, HEAD_DIM]. */
static annulus_tensor rows_of(float *data) {
    annulus_tensor rows = {
        data, ANNULUS_FLOAT32, 4, {1, POSITIONS, HEADS, HEAD_DIM}, {COUNT, HEADS * HEAD_DIM, HEAD_DIM, 1}};
    return rows;
}

int main(void) {
    static float q_data[COUNT], k_data[COUNT], v_data[COUNT], out_data[COUNT], lse_data[HEADS * POSITIONS];
    for (int i = 0; i < COUNT; ++i) {
        q_data[i] = (float)rand() / (float)RAND_MAX;
        k_data[i] = (float)rand() / (float)RAND_MAX;
        v_data[i] = 1; /* a weighted mean of ones is one, except where zeros pad a segment */
    }
    annulus_tensor q = rows_of(q_data), k = rows_of(k_data), v = rows_of(v_data), out = rows_of(out_data);
    annulus_tensor lse = {lse_data, ANNULUS_FLOAT32, 3, {1, HEADS, POSITIONS}, {HEADS * POSITIONS, POSITIONS, 1}};

    annulus_config *config;
    check(annulus_config_create(&config));
    check(annulus_config_add_preset(config, "gigapath"));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));
    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL)); /* lse: [1, 16, tiles + 1] */

    float least = 2, most = 0;
    for (int i = 0; i < COUNT; ++i) {
        least = out_data[i] < least ? out_data[i] : least;
        most = out_data[i] > most ? out_data[i] : most;
    }
    printf("%d tiles: outputs from %.4f to %.4f\n", TILES, least, most);
    annulus_context_destroy(context);
    annulus_config_destroy(config);
    return least > 0.9f && most < 1.0001f ? 0 : 1;
}
