/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence over the processes of mpirun, on CPUs: each holds a contiguous part of it, of any length, and calls
   forward and backward on that. Compare with one process: mpirun -n 1 prints the same sums. */
#include <annulus/annulus.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 10000, HEADS = 4, HEAD_DIM = 32, ROW = HEADS * HEAD_DIM };

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* A contiguous float32 tensor. At least one element is allocated: a rank may hold no row. */
static annulus_tensor make_tensor(int32_t ndim, int64_t b, int64_t c, int64_t d) {
    annulus_tensor t = {NULL, ANNULUS_FLOAT32, ndim, {1, b, c, d}, {b * c * d, c * d, d, 1}};
    t.data = malloc((size_t)(b * c * d + 1) * sizeof(float));
    if (!t.data)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return t;
}

static annulus_tensor make_rows(int64_t rows) {
    return make_tensor(4, rows, HEADS, HEAD_DIM);
}

/* Numbers in [-1, 1) that depend on the position in the whole sequence, not on the rank that holds it. */
static annulus_tensor make_input(int64_t first, int64_t rows, uint64_t seed) {
    annulus_tensor t = make_rows(rows);
    for (int64_t i = 0; i < rows * ROW; ++i) {
        uint64_t x = (uint64_t)(first * ROW + i) * 4 + seed;
        x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        ((float *)t.data)[i] = (float)(x >> 40) / (float)(1 << 23) - 1;
    }
    return t;
}

/* Sums over the rows of all ranks. */
static double dot(const annulus_tensor *a, const annulus_tensor *b) {
    double own = 0, sum;
    for (int64_t i = 0; i < a->shape[1] * ROW; ++i)
        own += (double)((float *)a->data)[i] * ((float *)b->data)[i];
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    /* The shards: the first ranks hold one row more if the number of ranks does not divide the length. */
    int64_t *lengths = malloc((size_t)ranks * sizeof *lengths);
    if (!lengths)
        MPI_Abort(MPI_COMM_WORLD, 1);
    int64_t first = 0;
    for (int i = 0; i < ranks; ++i) {
        lengths[i] = TOKENS / ranks + (i < TOKENS % ranks);
        first += i < rank ? lengths[i] : 0;
    }
    const int64_t rows = lengths[rank];
    annulus_tensor q = make_input(first, rows, 0), k = make_input(first, rows, 1), v = make_input(first, rows, 2);
    annulus_tensor d_out = make_input(first, rows, 3), out = make_rows(rows), lse = make_tensor(3, HEADS, rows, 1);
    annulus_tensor d_q = make_rows(rows), d_k = make_rows(rows), d_v = make_rows(rows);

    annulus_config *config;
    check(annulus_config_create(&config));
    check(annulus_config_add_longnet(config, 1024, 4, 4, 3)); /* 1024:1, 4096:4, 16384:16 */
    check(annulus_config_set_causal(config, 1));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
    check(annulus_context_set_config(context, config));
    check(annulus_context_set_threads(context, 1)); /* here all ranks are on one machine */

    /* What several ranks add to a program: a communicator, and shards that are not equally long. */
    const MPI_Comm world = MPI_COMM_WORLD;
    annulus_comm *comm;
    check(annulus_comm_create_from_mpi(&comm, &world, NULL));
    check(annulus_context_set_comm(context, comm));
    annulus_shards shards = ANNULUS_SHARDS_INIT;
    shards.count = ranks;
    shards.lengths = lengths;
    check(annulus_context_set_shards(context, &shards));

    annulus_traffic traffic = ANNULUS_TRAFFIC_INIT;
    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
    check(annulus_context_last_traffic(context, &traffic));
    check(annulus_backward(context, &q, &k, &v, &out, &lse, &d_out, NULL, &d_q, &d_k, &d_v, NULL));

    /* The gradients of any attention obey sum(q * dq) = sum(k * dk) over the whole sequence, and O is linear in V:
       sum(v * dv) = sum(out * dout). */
    const double by_q = dot(&q, &d_q), by_k = dot(&k, &d_k), by_v = dot(&v, &d_v), by_out = dot(&out, &d_out);
    printf("rank %d of %d: %lld rows, %llu bytes of K and V sent forward\n", rank, ranks, (long long)rows,
           (unsigned long long)traffic.sent_bytes);
    if (rank == 0)
        printf("sum(q * dq) = %.3f, sum(k * dk) = %.3f, sum(v * dv) = %.3f, sum(out * dout) = %.3f\n", by_q, by_k, by_v,
               by_out);
    const double bound = 1e-4 * sqrt((double)TOKENS * ROW);
    const int holds = fabs(by_q - by_k) < bound && fabs(by_v - by_out) < bound;

    annulus_context_destroy(context);
    annulus_comm_destroy(comm); /* before MPI_Finalize() */
    annulus_config_destroy(config);
    annulus_tensor tensors[] = {q, k, v, d_out, out, lse, d_q, d_k, d_v};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i)
        free(tensors[i].data);
    free(lengths);
    MPI_Finalize();
    return holds ? 0 : 1;
}
