/* SPDX-License-Identifier: Apache-2.0 */
/* A process for each GPU. One makes NCCL's id and every other gets its bytes by whatever there is: pipes here; between
   machines a file, a socket or MPI. Exits 77 where there are not two GPUs, or is no NCCL. */
#define _POSIX_C_SOURCE 200809L
#include <annulus/annulus.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, ROWS = 32768, HEADS = 8, HEAD_DIM = 64, COUNT = ROWS * HEADS * HEAD_DIM, SKIPPED = 77 };

typedef struct sums {
    double by_q, by_k, by_v, by_out;
} sums;

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1);
    }
}

static void check_cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA error: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void check_true(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

/* A contiguous float32 tensor in the memory of the process's GPU. */
static annulus_tensor device_tensor(int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    annulus_tensor t = {NULL, ANNULUS_FLOAT32, ndim, {a, b, c, d}, {b * c * d, c * d, d, 1}};
    check_cuda(cudaMalloc(&t.data, (size_t)(a * b * c * d) * sizeof(float)));
    return t;
}

static annulus_tensor device_rows(void) {
    return device_tensor(4, 1, ROWS, HEADS, HEAD_DIM);
}

/* Numbers in [-1, 1), different ones for each seed. */
static annulus_tensor random_rows(unsigned seed, float *buffer) {
    annulus_tensor t = device_rows();
    unsigned x = seed * 2654435761u + 1;
    for (int i = 0; i < COUNT; ++i) {
        x = x * 1664525u + 1013904223u;
        buffer[i] = (float)(x >> 8) / (float)(1 << 23) - 1;
    }
    check_cuda(cudaMemcpy(t.data, buffer, COUNT * sizeof *buffer, cudaMemcpyHostToDevice));
    return t;
}

static double dot(const annulus_tensor *a, const annulus_tensor *b, float *buffers[2]) {
    double sum = 0;
    check_cuda(cudaMemcpy(buffers[0], a->data, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(buffers[1], b->data, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; ++i)
        sum += (double)buffers[0][i] * buffers[1][i];
    return sum;
}

/* Computes forward and backward on the rank's part of the sequence, and its part of the sums that are compared. */
static sums compute(const annulus_nccl_id *id, int32_t rank) {
    check_cuda(cudaSetDevice(rank));
    float *buffers[2] = {malloc(COUNT * sizeof(float)), malloc(COUNT * sizeof(float))};
    check_true(buffers[0] && buffers[1], "malloc");
    const unsigned seed = 4 * (unsigned)rank;
    annulus_tensor q = random_rows(seed, buffers[0]), k = random_rows(seed + 1, buffers[0]);
    annulus_tensor v = random_rows(seed + 2, buffers[0]), d_out = random_rows(seed + 3, buffers[0]);
    annulus_tensor out = device_rows(), d_q = device_rows(), d_k = device_rows(), d_v = device_rows();
    annulus_tensor lse = device_tensor(3, 1, HEADS, ROWS, 1);

    annulus_config *config;
    check(annulus_config_create(&config));
    check(annulus_config_add_longnet(config, 2048, 4, 4, 4)); /* 2048:1, 8192:4, 32768:16, 131072:64 */
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, rank));
    check(annulus_context_set_config(context, config));

    annulus_comm *comm;
    check(annulus_comm_create_nccl(&comm, id, RANKS, rank, rank, NULL)); /* waits for the same call on all ranks */
    check(annulus_comm_set_timeout(comm, 60));
    check(annulus_context_set_comm(context, comm));

    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
    check(annulus_backward(context, &q, &k, &v, &out, &lse, &d_out, NULL, &d_q, &d_k, &d_v, NULL));
    const sums own = {dot(&q, &d_q, buffers), dot(&k, &d_k, buffers), dot(&v, &d_v, buffers),
                      dot(&out, &d_out, buffers)};

    annulus_context_destroy(context);
    annulus_comm_destroy(comm);
    annulus_config_destroy(config);
    annulus_tensor tensors[] = {q, k, v, d_out, out, d_q, d_k, d_v, lse};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i)
        check_cuda(cudaFree(tensors[i].data));
    free(buffers[0]);
    free(buffers[1]);
    return own;
}

/* Reads the id that the parent makes, and writes the sums. */
static void be_child(int id_pipe, int sums_pipe, int32_t rank) {
    annulus_nccl_id id;
    if (read(id_pipe, &id, sizeof id) != (ssize_t)sizeof id) /* the parent has none, and printed why */
        exit(1);
    const sums own = compute(&id, rank);
    check_true(write(sums_pipe, &own, sizeof own) == (ssize_t)sizeof own, "write");
    exit(0);
}

int main(void) {
    int id_pipes[RANKS][2], sums_pipes[RANKS][2];
    pid_t children[RANKS];
    /* Processes are forked before the first call that reaches CUDA: it does not survive a fork. */
    for (int rank = 1; rank < RANKS; ++rank) {
        check_true(pipe(id_pipes[rank]) == 0 && pipe(sums_pipes[rank]) == 0, "pipe");
        children[rank] = fork();
        check_true(children[rank] >= 0, "fork");
        if (children[rank] == 0) {
            close(id_pipes[rank][1]); /* or the parent's end would never be seen to close */
            be_child(id_pipes[rank][0], sums_pipes[rank][1], rank);
        }
        close(id_pipes[rank][0]);
        close(sums_pipes[rank][1]);
    }

    int32_t gpus;
    check(annulus_device_count(ANNULUS_DEVICE_CUDA, &gpus));
    if (gpus < RANKS) {
        puts("skipped: needs two GPUs");
        return SKIPPED; /* the children see their pipes close */
    }
    annulus_nccl_id id;
    const annulus_status status = annulus_nccl_id_generate(&id);
    if (status == ANNULUS_ERROR_UNSUPPORTED) {
        printf("skipped: %s\n", annulus_last_error());
        return SKIPPED;
    }
    check(status);
    for (int rank = 1; rank < RANKS; ++rank)
        check_true(write(id_pipes[rank][1], &id, sizeof id) == (ssize_t)sizeof id, "write");

    sums all = compute(&id, 0);
    int holds = 1;
    for (int rank = 1; rank < RANKS; ++rank) {
        sums other;
        int status;
        if (read(sums_pipes[rank][0], &other, sizeof other) != (ssize_t)sizeof other)
            return 1;
        holds = waitpid(children[rank], &status, 0) == children[rank] && status == 0 && holds;
        all.by_q += other.by_q, all.by_k += other.by_k;
        all.by_v += other.by_v, all.by_out += other.by_out;
    }

    /* Over the whole sequence, the gradients of any attention obey sum(q * dq) = sum(k * dk), and, as O is linear in V,
       sum(v * dv) = sum(out * dout). No process's part does so by itself. */
    printf("sum(q * dq) = %.3f, sum(k * dk) = %.3f\n", all.by_q, all.by_k);
    printf("sum(v * dv) = %.3f, sum(out * dout) = %.3f\n", all.by_v, all.by_out);
    const double bound = 1e-4 * sqrt((double)RANKS * COUNT);
    return holds && fabs(all.by_q - all.by_k) < bound && fabs(all.by_v - all.by_out) < bound ? 0 : 1;
}
