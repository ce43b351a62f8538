/* SPDX-License-Identifier: Apache-2.0 */
/* One process drives all GPUs of the machine: a thread each, which holds its part of one sequence. Exits 77 where there
   is no GPU. */
#include <annulus/annulus.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 32768, HEADS = 8, HEAD_DIM = 64, COUNT = ROWS * HEADS * HEAD_DIM }; /* on each GPU */

/* A thread's arguments and results: its part of the sums that are compared. */
typedef struct share {
    int32_t device;
    annulus_comm *comm;
    double by_q, by_k, by_v, by_out;
} share;

static void check(annulus_status status) {
    if (status != ANNULUS_OK) {
        fprintf(stderr, "%s error: %s\n", annulus_status_name(status), annulus_last_error());
        exit(1); /* a program that goes on would call annulus_comm_abort(), so that no other thread waits */
    }
}

static void check_cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA error: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

/* A contiguous float32 tensor in the memory of the thread's GPU. */
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

static void *compute(void *argument) {
    share *own = argument;
    check_cuda(cudaSetDevice(own->device));
    cudaStream_t stream;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    float *buffers[2] = {malloc(COUNT * sizeof(float)), malloc(COUNT * sizeof(float))};
    if (!buffers[0] || !buffers[1])
        exit(1);
    const unsigned seed = 4 * (unsigned)own->device;
    annulus_tensor q = random_rows(seed, buffers[0]), k = random_rows(seed + 1, buffers[0]);
    annulus_tensor v = random_rows(seed + 2, buffers[0]), d_out = random_rows(seed + 3, buffers[0]);
    annulus_tensor out = device_rows(), d_q = device_rows(), d_k = device_rows(), d_v = device_rows();
    annulus_tensor lse = device_tensor(3, 1, HEADS, ROWS, 1);

    annulus_config *config;
    check(annulus_config_create(&config));
    check(annulus_config_add_longnet(config, 2048, 4, 4, 4)); /* 2048:1, 8192:4, 32768:16, 131072:64 */
    check(annulus_config_set_causal(config, 1));
    annulus_context *context;
    check(annulus_context_create(&context, ANNULUS_DEVICE_CUDA, own->device));
    check(annulus_context_set_stream(context, stream));
    check(annulus_context_set_config(context, config));
    check(annulus_context_set_comm(context, own->comm)); /* the ranks tell one another their shards */

    check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
    check(annulus_backward(context, &q, &k, &v, &out, &lse, &d_out, NULL, &d_q, &d_k, &d_v, NULL));
    check_cuda(cudaStreamSynchronize(stream));
    own->by_q = dot(&q, &d_q, buffers), own->by_k = dot(&k, &d_k, buffers);
    own->by_v = dot(&v, &d_v, buffers), own->by_out = dot(&out, &d_out, buffers);

    annulus_context_destroy(context);
    annulus_config_destroy(config);
    annulus_tensor tensors[] = {q, k, v, d_out, out, d_q, d_k, d_v, lse};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i)
        check_cuda(cudaFree(tensors[i].data));
    check_cuda(cudaStreamDestroy(stream));
    free(buffers[0]);
    free(buffers[1]);
    return NULL;
}

int main(void) {
    int32_t gpus;
    check(annulus_device_count(ANNULUS_DEVICE_CUDA, &gpus));
    if (gpus == 0) {
        puts("skipped: no GPU");
        return 77;
    }
    annulus_comm **comms = calloc((size_t)gpus, sizeof *comms);
    share *shares = calloc((size_t)gpus, sizeof *shares);
    pthread_t *threads = calloc((size_t)gpus, sizeof *threads);
    if (!comms || !shares || !threads)
        return 1;
    check(annulus_comm_create_local(comms, gpus, NULL));
    for (int i = 0; i < gpus; ++i) {
        shares[i].device = i;
        shares[i].comm = comms[i];
        if (pthread_create(&threads[i], NULL, compute, &shares[i]) != 0)
            return 1;
    }
    share all = {0};
    for (int i = 0; i < gpus; ++i) {
        pthread_join(threads[i], NULL);
        all.by_q += shares[i].by_q, all.by_k += shares[i].by_k;
        all.by_v += shares[i].by_v, all.by_out += shares[i].by_out;
        annulus_comm_destroy(comms[i]);
    }

    /* Over the whole sequence, the gradients of any attention obey sum(q * dq) = sum(k * dk), and, as O is linear in V,
       sum(v * dv) = sum(out * dout). The part of one GPU does not. */
    printf("%d GPUs, %lld tokens\n", (int)gpus, (long long)gpus * ROWS);
    printf("sum(q * dq) = %.3f, sum(k * dk) = %.3f\n", all.by_q, all.by_k);
    printf("sum(v * dv) = %.3f, sum(out * dout) = %.3f\n", all.by_v, all.by_out);
    const double bound = 1e-4 * sqrt((double)gpus * COUNT);
    const int holds = fabs(all.by_q - all.by_k) < bound && fabs(all.by_v - all.by_out) < bound;
    free(comms);
    free(shares);
    free(threads);
    return holds ? 0 : 1;
}
